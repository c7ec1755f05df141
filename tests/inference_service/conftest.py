"""Two tokenizers in which detokenisation faults show: byte-level BPE, and sentencepiece BPE with byte fallback."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from inference_service.text.tokenizer import Tokenizer
from inference_service.text.vocabulary import Vocabulary

CORPUS = ["the quick brown fox jumps over the lazy dog. hello world, foo:bar", "ABCDEFGHIJ DEF GHI " * 20] * 5
SPECIALS = ["<s>", "</s>", "<|im_end|>"]


def byte_level() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIALS,
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("été", normalized=False)])
    return backend


def sentencepiece() -> Backend:
    """As Llama 2's: words after "▁", unknown characters as <0xXX> tokens, the first space stripped, a BOS."""
    pieces = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz.,:ABCDEFGHIJ"]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    merges = []
    for merge in [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "h"), ("l", "l"), ("D", "E"), ("DE", "F"), ("▁", "▁")]:
        vocab["".join(merge)] = len(vocab)
        merges.append(merge)
    backend = Backend(models.BPE(vocab, merges, fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(Regex(" "), "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(SPECIALS)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    return backend


def metaspace() -> Backend:
    """As sentencepiece, but decoded in one step and without byte tokens: an unknown character has no id."""
    backend = Backend.from_str(sentencepiece().to_str())
    backend.decoder = decoders.Metaspace()
    return backend


def bare() -> Backend:
    """No decoder: tokens are joined with spaces."""
    backend = Backend(
        models.WordLevel({piece: i for i, piece in enumerate([*SPECIALS, "[UNK]", "hello", "fox"])}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(SPECIALS)
    return backend


def word_piece() -> Backend:
    """As BERT's: spaces between tokens that do not begin with ##."""
    pieces = ["[UNK]", *SPECIALS, "hello", "wor", "##ld", "fox", ".", "don", "'", "t"]
    backend = Backend(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.add_special_tokens(SPECIALS)
    return backend


BACKENDS = {make.__name__: make() for make in (byte_level, sentencepiece, metaspace, word_piece, bare)}


VOCABULARIES = {kind: Vocabulary(backend) for kind, backend in BACKENDS.items()}


@pytest.fixture(scope="session", params=list(BACKENDS))
def any_vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return VOCABULARIES[request.param]


@pytest.fixture(scope="session")
def bytes_vocabulary() -> Vocabulary:
    return VOCABULARIES["byte_level"]


@pytest.fixture(scope="session")
def pieces_vocabulary() -> Vocabulary:
    return VOCABULARIES["sentencepiece"]


@pytest.fixture(scope="session")
def words_vocabulary() -> Vocabulary:
    return VOCABULARIES["word_piece"]


def write_tokenizer(backend: Backend, directory: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=True
    )
    fast.chat_template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}{{ flavour | default('') }}"
    )
    fast.save_pretrained(directory)


@pytest.fixture(params=["byte_level", "sentencepiece"])
def tokenizer_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_tokenizer(BACKENDS[request.param], tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def bytes_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(BACKENDS["byte_level"], directory)
    return directory


@pytest.fixture
def tokenizer(tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer(tokenizer_dir)


@pytest.fixture(scope="session")
def pieces_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(BACKENDS["sentencepiece"], directory)
    return directory
