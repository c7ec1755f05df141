"""What the detokenizer asks of a tokenizer: tokens, their bytes, which are special, how they join."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from tokenizers import Tokenizer as BackendTokenizer

from enginehouse.errors import FailedPrecondition


def _byte_of_char() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the others are moved above U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(moved)}


_BYTE_OF_CHAR = _byte_of_char()


class Vocabulary:
    """Read-only view of a `tokenizers.Tokenizer`."""

    def __init__(self, backend: BackendTokenizer) -> None:
        self._backend = backend
        self._bytes: dict[int, bytes] = {}
        self._decoder = json.loads(backend.to_str()).get("decoder") or {}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokens that skip_special_tokens leaves out."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @property
    def is_byte_level(self) -> bool:
        """Whether tokens spell bytes and nothing else happens when they are joined."""
        return bool(self._decoder.get("type") == "ByteLevel")

    @cached_property
    def may_split_characters(self) -> bool:
        """Whether a byte-level step is somewhere in a composite decoder."""
        return "ByteLevel" in json.dumps(self._decoder)

    def __len__(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    def token(self, token_id: int) -> str | None:
        """The token's spelling in the vocabulary; None for an id that has none (padding of the logits)."""
        return self._backend.id_to_token(token_id)

    def token_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token of a byte-level vocabulary stands for; empty for an unknown id."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = _bytes_of_token(self.token(token_id) or "")
        return known

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """The one-shot decode."""
        with usable():
            return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)


def unusable() -> FailedPrecondition:
    """The refusal of an engine whose tokenizer's files are damaged."""
    return FailedPrecondition(
        "The engine's tokenizer cannot be read; build the engine again.", reason="TOKENIZER_UNUSABLE"
    )


@contextmanager
def usable() -> Iterator[None]:
    """Raises `unusable` for a panic of the library, which is no Exception and would pass all that expects one."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise unusable() from error


def _bytes_of_token(token: str) -> bytes:
    if all(char in _BYTE_OF_CHAR for char in token):
        return bytes(_BYTE_OF_CHAR[char] for char in token)
    return token.encode()
