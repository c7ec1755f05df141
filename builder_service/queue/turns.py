"""Who runs next: priorities that age, and memory that must suffice. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

PATIENCE_SECONDS = 3600.0
"""The head start of priority 1 over priority 0: nobody who comes later than this after a build is taken before it."""
MAX_OVERTAKEN = 8
"""How many smaller builds may start before one whose memory is not free; after that, memory is kept for it."""


class Waiting(NamedTuple):
    """What the choice needs of a waiting build. `memory_bytes`: what it is expected to hold at most; None: unknown."""

    operation: str
    fingerprint: str
    memory_bytes: int | None


class Budget(NamedTuple):
    """Memory for all builds together, in bytes (0: no limit), and how many may run."""

    memory_bytes: int
    places: int

    def need(self, memory_bytes: int | None) -> int:
        """What a build counts for; one of unknown size counts as an equal share."""
        return self.memory_bytes // self.places if memory_bytes is None else memory_bytes


def turn(priority: float, entered: float) -> float:
    """Orders waiting builds, the lowest first, equals by age.

    Priority grows with waiting, by 1 in `PATIENCE_SECONDS`: `priority + (now - entered) / PATIENCE_SECONDS`. As all
    grow alike, `now` does not change their order, which this states as the time at which a build of priority 0
    would have had to enter to be as far.

    Args:
        priority: 0 to 1, higher first.
        entered: when it was asked for, in seconds.
    """
    return entered - priority * PATIENCE_SECONDS


class Choice(NamedTuple):
    """The build to start, None for none now, and those whose memory is not free and that it overtakes."""

    start: Waiting | None
    overtaken: list[str]


def choose(waiting: Iterable[Waiting], running: Sequence[int], budget: Budget, overtaken: dict[str, int]) -> Choice:
    """The next build to start.

    Args:
        waiting: those that may start, in their turn.
        running: the memory that each running build counts for.
        overtaken: how often each waiting build was overtaken already.

    A build starts when a place is free and its memory too, or when nothing runs.
    """
    free = budget.memory_bytes - sum(running)
    passed: list[str] = []
    if len(running) >= budget.places:
        return Choice(None, [])
    for build in waiting:
        if not running or not budget.memory_bytes or budget.need(build.memory_bytes) <= free:
            return Choice(build, passed)
        if overtaken.get(build.operation, 0) >= MAX_OVERTAKEN:
            break
        passed.append(build.operation)
    return Choice(None, [])
