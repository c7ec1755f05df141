"""The tokenizer of an engine version: its own files only, never remote code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enginehouse.errors import FailedPrecondition, InvalidArgument
from inference_service.text.detokenizer import make_detokenizer
from inference_service.text.vocabulary import Vocabulary, unusable, usable

_CONFIG_FILES = ("tokenizer_config.json", "config.json")
# Names of apply_chat_template's own parameters and of what it passes to every template.
_RESERVED_OPTIONS = frozenset(
    {
        *("conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt", "self"),
        *("continue_final_message", "tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    }
)


class Encoded(NamedTuple):
    """Ids, and for each the characters [start, end) of the text that it stands for."""

    token_ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """Encodes, decodes and renders chats. Safe to share between threads.

    Args:
        directory: an engine version's `tokenizer/` folder.

    Raises:
        FailedPrecondition: the folder has no usable fast tokenizer, or asks for code of its own.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        _refuse_code(directory)
        with usable():
            self._hf = _load(directory)
            self.vocabulary = Vocabulary(self._hf.backend_tokenizer)

    @property
    def vocab_size(self) -> int:
        """Tokens with a spelling; the logits of a model may have more columns."""
        return len(self.vocabulary)

    @property
    def bos_token_id(self) -> int | None:
        return self._optional_id("bos_token_id")

    @property
    def eos_token_id(self) -> int | None:
        return self._optional_id("eos_token_id")

    @property
    def pad_token_id(self) -> int | None:
        return self._optional_id("pad_token_id")

    @property
    def has_chat_template(self) -> bool:
        return bool(self._hf.chat_template)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, with the special tokens (BOS) that the tokenizer adds unless told not to."""
        with usable():
            ids: list[int] = self._hf.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_with_offsets(self, text: str, *, add_special_tokens: bool = True) -> Encoded:
        """As `encode`, with where each token stands in `text`."""
        with usable():
            encoding = self._hf.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return Encoded(encoding.ids, encoding.offsets)

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """The one-shot decode. Ids without a spelling give no text."""
        if skip_special_tokens or spaces_between_special_tokens:
            return self.vocabulary.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        detokenizer = make_detokenizer(self.vocabulary, skip_special_tokens=False, spaces_between_special_tokens=False)
        return "".join([*map(detokenizer.push, token_ids), detokenizer.flush()])

    def special_token_id(self, text: str) -> int | None:
        """The id of the special token that is spelled `text`, if there is one."""
        token_id = self.vocabulary.token_id(text)
        return token_id if token_id in self.vocabulary.special_ids else None

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a chat, by the engine's own template in transformers' sandbox.

        Encode the result with add_special_tokens=False: the template writes its own. May be slow: call it off the
        event loop.

        Raises:
            FailedPrecondition: the engine has no chat template.
            InvalidArgument: the template refuses the messages, or an option has a reserved name.
        """
        if not self.has_chat_template:
            raise FailedPrecondition(
                "The model has no chat template; send `text` or `token_ids` instead of `chat`.",
                reason="NO_CHAT_TEMPLATE",
            )
        reserved = sorted(set(options or ()) & _RESERVED_OPTIONS)
        if reserved:
            raise InvalidArgument(
                f"The template option `{reserved[0]}` is reserved; remove it.",
                reason="RESERVED_TEMPLATE_OPTION",
                metadata={"field": "template_options", "option": reserved[0]},
            )
        try:
            text: str = self._hf.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                documents=[dict(document) for document in documents] or None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tokenize=False,
                **(options or {}),
            )
        except Exception as error:  # a template is a program: whatever it raises is about this request
            raise InvalidArgument(
                f"The model's chat template refused the messages: {_first_line(error)}.",
                reason="CHAT_TEMPLATE_FAILED",
                metadata={"field": "chat", "error": _first_line(error)},
            ) from error
        return text

    def files(self) -> list[Path]:
        """The tokenizer's files, sorted by name."""
        return sorted(path for path in self._directory.iterdir() if path.is_file() and not path.is_symlink())

    def _optional_id(self, name: str) -> int | None:
        value: int | None = getattr(self._hf, name)
        return value


def _load(directory: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(directory), use_fast=True, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # the libraries raise whatever a damaged file leads them to
        raise unusable() from error
    if not tokenizer.is_fast:
        raise FailedPrecondition(
            "The engine's tokenizer has no fast form (tokenizer.json); convert it and build the engine again.",
            reason="TOKENIZER_NOT_FAST",
        )
    return tokenizer


def _refuse_code(directory: Path) -> None:
    """A tokenizer that names classes of its own would need its code run."""
    for name in _CONFIG_FILES:
        path = directory / name
        try:
            asks = path.is_file() and "auto_map" in json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, TypeError, RecursionError) as error:
            raise unusable() from error
        if asks:
            raise FailedPrecondition(
                f"The tokenizer asks for remote code (`auto_map` in {name}), which is never run.",
                reason="REMOTE_CODE",
                metadata={"file": name},
            )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
