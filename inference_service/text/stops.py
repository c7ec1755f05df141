"""Stop strings, found across tokens, with exactly the text held back that may still begin one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """A stop string stands at [start, end) of the whole text; counted in characters."""

    text: str
    start: int
    end: int


class _Pattern:
    """Knuth-Morris-Pratt over a stream: `matched` characters of `text` end the stream so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._borders = _borders(text)

    def step(self, char: str) -> bool:
        """Takes the next character; returns whether the pattern now ends here."""
        while self.matched and (self.matched == len(self.text) or self.text[self.matched] != char):
            self.matched = self._borders[self.matched - 1]
        if self.text[self.matched] == char:
            self.matched += 1
        return self.matched == len(self.text)

    @property
    def held(self) -> int:
        """Length of the longest suffix of the stream that is a proper prefix of the pattern."""
        return self.matched if self.matched < len(self.text) else self._borders[-1]


def _borders(text: str) -> list[int]:
    """borders[i]: length of the longest proper prefix of text[:i+1] that is also its suffix."""
    borders, length = [0] * len(text), 0
    for i in range(1, len(text)):
        while length and text[i] != text[length]:
            length = borders[length - 1]
        length += text[i] == text[length]
        borders[i] = length
    return borders


class StopChecker:
    """Watches one sequence's text.

    The match that ends first wins, of those the longest; so a result does not depend on how the text was cut into
    tokens. A stop string completed while `active` is False (before min_tokens) never counts; one that began then and
    is completed later does.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._patterns = [_Pattern(text) for text in stops]
        self._length = 0

    @property
    def held(self) -> int:
        """How many characters at the end of the text may be the beginning of a stop string."""
        return max((pattern.held for pattern in self._patterns), default=0)

    def feed(self, text: str, *, active: bool = True) -> StopMatch | None:
        """Takes the next piece of text; returns the match that it completes. Not to be fed after a match."""
        if not self._patterns:
            return None
        for char in text:
            self._length += 1
            ended = [pattern.text for pattern in self._patterns if pattern.step(char)]
            if ended and active:
                longest = max(ended, key=len)
                return StopMatch(longest, self._length - len(longest), self._length)
        return None
