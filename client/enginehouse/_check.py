"""Checks of what a caller passes, each raising ValueError or TypeError that names the field."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator

from enginehouse.errors import InvalidArgument

INT32_MAX = 2**31 - 1


def integer(name: str, value: object, low: int = -(2**31), high: int = INT32_MAX) -> None:
    """`value` is None or an int in [low, high]; a bool is not an int here."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an int, not {value!r}")
    if not low <= value <= high:
        wanted = f"at most {high}" if value > high == INT32_MAX else _range(low, high, INT32_MAX)
        raise ValueError(f"{name} must be {wanted}, not {value}")


def number(name: str, value: object, low: float = -math.inf, high: float = math.inf, *, above: bool = False) -> None:
    """`value` is None or a finite number in [low, high], or in (low, high] with `above`."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, not {value}")
    if value < low or value > high or (above and value == low):
        raise ValueError(f"{name} must be {_range(low, high, math.inf, above=above)}, not {value}")


def boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    if value is not None and value not in (choices := list(allowed)):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def integers(name: str, value: object, low: int = 0, high: int = INT32_MAX) -> None:
    """`value` is None or a list or tuple of ints in [low, high]."""
    if value is None:
        return
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} must be a list of ints, not {value!r}")
    for item in value:
        if type(item) is not int or not low <= item <= high:  # most calls are long prompts: one test, no call
            integer(f"{name}[{list(value).index(item)}]", item, low, high)


def texts(name: str, value: object) -> list[str]:
    """The list that a str, a list of str or None stands for. An empty text is refused: it would match everywhere."""
    if value is None:
        return []
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError(f"{name} must be a str or a list of str, not {value!r}")
    if "" in items:
        raise ValueError(f"{name} must not hold an empty text")
    return list(items)


def _range(low: float, high: float, top: float, *, above: bool = False) -> str:
    lower = f"above {low}" if above else f"at least {low}"
    return lower if high == top else f"{lower} and at most {high}"


@contextlib.contextmanager
def valid_text() -> Iterator[None]:
    """Turns the failure to encode a text within into InvalidArgument: half of a surrogate pair is no character."""
    try:
        yield
    except UnicodeEncodeError as error:
        wrong = ord(error.object[error.start])
        raise InvalidArgument(
            f"A text has U+{wrong:04X} alone at position {error.start}: half of a surrogate pair, which is no "
            "character. Decode the text again from its bytes, or replace it.",
            reason="INVALID_TEXT",
            metadata={"position": error.start, "character": f"U+{wrong:04X}"},
        ) from error
