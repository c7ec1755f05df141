"""Ids to text, one token at a time: the pieces always concatenate to the one-shot decode of all ids.

Text that a later token could still change is held back: an incomplete UTF-8 sequence, and a run of byte-fallback
tokens (`<0xE4>`), which the one-shot decode reads as a whole. `flush` ends the text as the one-shot decode does.
"""

from __future__ import annotations

import codecs
import re
from typing import Protocol

from inference_service.text.vocabulary import Vocabulary

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer(Protocol):
    """Turns ids into text. Amortised O(1) per token; never raises, whatever the ids."""

    @property
    def pending(self) -> bool:
        """Whether some pushed token's text is still held back."""
        ...

    def push(self, token_id: int) -> str:
        """Takes the next id; returns the text that is now settled."""
        ...

    def flush(self) -> str:
        """Settles what is held back and returns it."""
        ...


def make_detokenizer(
    vocabulary: Vocabulary, *, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
) -> Detokenizer:
    """A detokenizer for one sequence.

    Args:
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: False joins neighbouring special tokens without the space that some decoders
            (WordPiece, none) put between tokens; byte-level and sentencepiece decoders put none either way.
    """
    if vocabulary.is_byte_level:
        return _ByteLevel(vocabulary, skip_special_tokens)
    return _Window(vocabulary, skip_special_tokens, spaces_between_special_tokens)


class _ByteLevel:
    """Byte-level BPE: every token is a byte string, so the text is one incremental UTF-8 decode."""

    def __init__(self, vocabulary: Vocabulary, skip_special: bool) -> None:
        self._vocabulary = vocabulary
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def pending(self) -> bool:
        return bool(self._utf8.getstate()[0])

    def push(self, token_id: int) -> str:
        if self._skip_special and token_id in self._vocabulary.special_ids:
            return ""
        return self._utf8.decode(self._vocabulary.token_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _Window:
    """Any other decoder: the text of the pending ids is what they add to the decode of the last settled id, which
    stands in for all that came before (it keeps decoders from treating the pending ids as the start of the text)."""

    def __init__(self, vocabulary: Vocabulary, skip_special: bool, spaces_between: bool) -> None:
        self._vocabulary = vocabulary
        self._skip_special = skip_special
        self._join_special = not spaces_between and not skip_special
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    @property
    def pending(self) -> bool:
        return bool(self._pending)

    def push(self, token_id: int) -> str:
        token = self._vocabulary.token(token_id)
        special = token_id in self._vocabulary.special_ids
        if token is None or (special and self._skip_special):
            return ""
        if special and self._join_special and self._context and self._context[0] in self._vocabulary.special_ids:
            text = self.flush() + token
            self._settle(token_id)
            return text
        self._pending.append(token_id)
        if _BYTE_TOKEN.fullmatch(token):
            return ""
        text = self._pending_text()
        if self._vocabulary.may_split_characters and text.endswith(_REPLACEMENT):
            return ""
        self._settle(token_id)
        return text

    def flush(self) -> str:
        if not self._pending:
            return ""
        text = self._pending_text()
        self._settle(self._pending[-1])
        return text

    def _pending_text(self) -> str:
        return self._vocabulary.decode(self._context + self._pending)[len(self._context_text) :]

    def _settle(self, last_id: int) -> None:
        self._context = [last_id]
        self._context_text = self._vocabulary.decode(self._context)
        self._pending = []
