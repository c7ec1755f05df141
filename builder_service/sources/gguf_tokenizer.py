"""A fast tokenizer from GGUF metadata.

Two kinds are read: "gpt2", byte-level BPE, whose split of text into words is named by `tokenizer.ggml.pre` and must
be known; and "llama", sentencepiece BPE with byte fallback, whose merges follow from the scores. Both are written as
tokenizer.json, so that nothing that loads the engine needs the GGUF file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from builder_service.build.tokenizer_files import GENERATION_CONFIG, write_json
from builder_service.sources.base import broken
from enginehouse.errors import Unimplemented

CONTROL, USER_DEFINED = 3, 4
"""Values of tokenizer.ggml.token_type for tokens that are matched whole in text."""
MAX_PIECE, MAX_MERGES = 512, 1 << 22
"""Characters of a sentencepiece token that is joined from others, and ways to join them: so that a hostile file costs
seconds and not hours. The longest piece known has some tens of characters."""

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


class Words(NamedTuple):
    """How a byte-level vocabulary splits text. `split`: a pattern, or None for GPT-2's own; `digits`: each digit
    alone; `nfc`: text is composed first; `whole_words`: a word that is a token needs no merges; `add_bos`: default."""

    split: str | None = None
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False


_LLAMA3 = Words(split=_LLAMA3_SPLIT, whole_words=True, add_bos=True)
_QWEN2 = Words(split=_QWEN2_SPLIT, nfc=True)
WORDS = {
    "gpt-2": Words(),
    "smollm": Words(digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


class Vocabulary:
    """The tokenizer section of the metadata, its lists checked against each other."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        self.tokens: list[str] = self._list("tokens", str)
        self.types: list[int] = self._list("token_type", int) or [1] * len(self.tokens)
        self.merges: list[str] = self._list("merges", str)
        self.scores: list[float] = self._list("scores", float)
        if len(self.types) != len(self.tokens):
            raise _damaged(f"{len(self.types)} token types for {len(self.tokens)} tokens")

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def token(self, key: str) -> str | None:
        """The text of the special token whose id is under `key`."""
        index = self.get(key)
        if index is None:
            return None
        if not isinstance(index, int) or not 0 <= index < len(self.tokens):
            raise _damaged(f"{key} is {index} and there are {len(self.tokens)} tokens")
        return self.tokens[index]

    def ids(self) -> dict[str, int]:
        """Ids by token; of a token that is listed twice the first id counts."""
        return {token: index for index, token in reversed(list(enumerate(self.tokens)))}

    def _list(self, key: str, kind: type) -> list[Any]:
        values = self.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise _damaged(f"{key} is no list of {kind.__name__}")
        return values


def _damaged(what: str) -> Exception:
    message = f"The GGUF file's tokenizer is damaged: {what}. Download the file again."
    return broken("CHECKPOINT_CORRUPT", message)


def _unsupported(key: str, value: object, known: object) -> Unimplemented:
    message = f"The GGUF file's tokenizer has {key} = {value!r}; the builder reads {known}."
    return Unimplemented(message, reason="UNSUPPORTED_TOKENIZER", metadata={"key": key, "value": value})


def token_id(metadata: dict[str, Any], key: str) -> int | None:
    """The id under `tokenizer.ggml.<key>`; None when it is absent or no number."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    return value if type(value) is int else None


def eos_token_ids(metadata: dict[str, Any]) -> list[int]:
    """Ids that end generation: end of sequence, and end of turn where the file has one of its own."""
    ids = [token_id(metadata, key) for key in ("eos_token_id", "eot_token_id")]
    return list(dict.fromkeys(index for index in ids if index is not None))


def write_gguf_tokenizer(metadata: dict[str, Any], generation_config: dict[str, Any], destination: Path) -> None:
    """Writes the tokenizer directory. Without `tokenizer.ggml.model` only generation_config.json is written.

    Raises:
        Unimplemented: a tokenizer kind or word split that is not known.
    """
    write_json(destination / GENERATION_CONFIG, generation_config)
    if "tokenizer.ggml.model" not in metadata:
        return
    vocabulary = Vocabulary(metadata)
    build_tokenizer(vocabulary).save(str(destination / "tokenizer.json"))
    write_json(destination / "tokenizer_config.json", _tokenizer_config(vocabulary))
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        (destination / "chat_template.jinja").write_text(template, encoding="utf-8")


def build_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer that the metadata describes."""
    kind = vocabulary.get("model")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in builders:
        raise _unsupported("tokenizer.ggml.model", kind, sorted(builders))
    tokenizer = builders[kind](vocabulary)
    pairs = list(zip(vocabulary.tokens, vocabulary.types, strict=True))
    tokenizer.add_special_tokens(_added(pairs, CONTROL))
    tokenizer.add_tokens(_added(pairs, USER_DEFINED))
    _add_template(tokenizer, vocabulary)
    return tokenizer


def _added(pairs: list[tuple[str, int]], kind: int) -> list[AddedToken]:
    special = kind == CONTROL
    return [AddedToken(token, normalized=False, special=special) for token, of_kind in pairs if of_kind == kind]


def _words(vocabulary: Vocabulary) -> Words:
    name = vocabulary.get("pre", "default")
    if name not in WORDS:
        raise _unsupported("tokenizer.ggml.pre", name, sorted(WORDS))
    return WORDS[name]


def _byte_level(vocabulary: Vocabulary) -> Tokenizer:
    words = _words(vocabulary)
    ids = vocabulary.ids()
    merges = [_pair(merge, ids) for merge in vocabulary.merges]
    tokenizer = Tokenizer(BPE(ids, merges, fuse_unk=False, ignore_merges=words.whole_words))
    if words.nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if words.digits else []
    if words.split is not None:
        steps.append(pre_tokenizers.Split(Regex(words.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words.split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(merge: str, ids: dict[str, int]) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not (left in ids and right in ids and left + right in ids):
        raise _damaged(f"the merge {merge!r} joins tokens that it does not have")
    return left, right


def _sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    unknown = vocabulary.token("unknown_token_id") or "<unk>"
    model = BPE(vocabulary.ids(), _derive_merges(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    prefix = bool(vocabulary.get("add_space_prefix", True))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _derive_merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every split of a token into two tokens is a merge; the token with the best score comes first, and of equal
    scores the split with the longer left part (transformers' order)."""
    if len(vocabulary.scores) != len(vocabulary.tokens):
        raise _damaged(f"{len(vocabulary.scores)} scores for {len(vocabulary.tokens)} tokens")
    ids = vocabulary.ids()
    ranked: list[tuple[float, str, str]] = []
    for token, index in ids.items():
        score = vocabulary.scores[index]
        splits = ((token[:cut], token[cut:]) for cut in range(1, min(len(token), MAX_PIECE)))
        known = [split for split in splits if split[0] in ids and split[1] in ids]
        if len(ranked) + len(known) > MAX_MERGES:
            raise _damaged(f"its tokens join in more than {MAX_MERGES} ways")
        ranked.extend((score, *split) for split in sorted(known, key=lambda split: (ids[split[0]], ids[split[1]])))
    ranked.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in ranked]


def _add_template(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Adds the begin and end tokens that the file asks for to every encoded text."""
    sentencepiece = vocabulary.get("model") == "llama"
    default = sentencepiece or _words(vocabulary).add_bos
    begin = vocabulary.token("bos_token_id") if vocabulary.get("add_bos_token", default) else None
    end = vocabulary.token("eos_token_id") if vocabulary.get("add_eos_token", False) else None
    used = [token for token in (begin, end) if token is not None]
    if not used:
        return
    parts = [*([begin] if begin else []), "$A", *([end] if end else [])]
    pair = [*parts, *(part.replace("$A", "$B") + ":1" for part in parts)]
    special = [(token, vocabulary.ids()[token]) for token in dict.fromkeys(used)]
    tokenizer.post_processor = processors.TemplateProcessing(single=parts, pair=pair, special_tokens=special)


def _tokenizer_config(vocabulary: Vocabulary) -> dict[str, Any]:
    named = {
        "bos_token": vocabulary.token("bos_token_id"),
        "eos_token": vocabulary.token("eos_token_id"),
        "unk_token": vocabulary.token("unknown_token_id"),
        "pad_token": vocabulary.token("padding_token_id"),
    }
    tokens = {key: token for key, token in named.items() if token is not None}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **tokens}
