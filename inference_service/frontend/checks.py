"""Range checks that name the field and the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from enginehouse.errors import InvalidArgument


def invalid(field: str, message: str, reason: str = "OUT_OF_RANGE", **metadata: object) -> InvalidArgument:
    """The refusal of a field's value. `message` follows the field's name."""
    return InvalidArgument(f"`{field}` {message}", reason=reason, metadata={"field": field, **metadata})


def check_int(field: str, value: int, low: int, high: int | None = None) -> int:
    """`value` when low <= value <= high; None is no upper bound."""
    if value < low or (high is not None and value > high):
        wanted = f"at least {low}" if high is None else f"from {low} to {high}"
        raise invalid(
            field, f"is {value}; it must be {wanted}.", value=value, min=low, max="" if high is None else high
        )
    return value


def check_float(field: str, value: float, low: float, high: float | None = None) -> float:
    """`value` when it is finite and low <= value <= high; None is no upper bound."""
    if not math.isfinite(value) or value < low or (high is not None and value > high):
        wanted = f"a finite number of at least {low:g}" if high is None else f"from {low:g} to {high:g}"
        raise invalid(
            field, f"is {value:g}; it must be {wanted}.", value=value, min=low, max="" if high is None else high
        )
    return value


def check_token_ids(field: str, ids: Iterable[int], vocab_size: int) -> list[int]:
    """`ids` as a list when all are in the vocabulary."""
    known = list(ids)
    for index, token_id in enumerate(known):
        if not 0 <= token_id < vocab_size:
            raise invalid(
                field,
                f"holds the id {token_id} at position {index}; the vocabulary has the ids 0 to {vocab_size - 1}.",
                "TOKEN_ID_OUT_OF_RANGE",
                token_id=token_id,
                position=index,
                vocab_size=vocab_size,
            )
    return known


def check_count(field: str, count: int, most: int) -> None:
    """Refuses lists with more than `most` entries."""
    if count > most:
        raise invalid(field, f"has {count} entries; at most {most} are allowed.", "TOO_MANY", count=count, max=most)
