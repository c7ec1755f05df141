"""What happens to a build, as the daemon stores it and `WatchBuild` replays it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from builder_service.job import ErrorEvent, Stage


class Started(msgspec.Struct, frozen=True, tag="stage"):
    """A stage began. `fraction` of the whole build is done, 0 to 1; `attempt` counts from 1."""

    stage: Stage
    fraction: float
    attempt: int


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """The stage moved on: `done` of `total` (0: unknown) of `unit`; `fraction` of the whole build, 0 to 1."""

    done: int
    total: int
    unit: str
    fraction: float


class Log(msgspec.Struct, frozen=True, tag="log"):
    """A line for a person."""

    level: Literal["info", "warning", "error"]
    text: str


class Memory(msgspec.Struct, frozen=True, tag="memory"):
    """The anonymous memory of the build's processes, in bytes; `limit` 0 is none."""

    current: int
    peak: int
    limit: int


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The last event. `version` is the published number when it succeeded, else 0 with the reason in `error`. `shares`:
    the operation of the identical build that the result is from."""

    stage: Stage
    version: int = 0
    reused: bool = False
    error: ErrorEvent | None = None
    shares: str = ""


Event = Started | Progress | Log | Memory | Finished
Sample = Progress | Memory
"""Events that the next of their kind supersedes."""


class Stored(NamedTuple):
    """An event, its sequence within the build (from 1) and its time in seconds since the epoch."""

    sequence: int
    time: float
    event: Event


# Where each stage begins, as a fraction of a whole build; measured on small models, good enough for a bar.
_BEGINS = {
    Stage.QUEUED: 0.0,
    Stage.FETCHING: 0.0,
    Stage.CONVERTING: 0.1,
    Stage.CAPTURING: 0.4,
    Stage.COMPILING: 0.5,
    Stage.VERIFYING: 0.6,
    Stage.PUBLISHING: 0.95,
    Stage.SUCCEEDED: 1.0,
}
RUNNING = tuple(_BEGINS)[1:-1]
FINAL = (Stage.SUCCEEDED, Stage.FAILED, Stage.CANCELLED)


def _next_stages() -> dict[Stage, frozenset[Stage]]:
    table = {stage: frozenset({*RUNNING[place + 1 :], *FINAL, Stage.QUEUED}) for place, stage in enumerate(RUNNING)}
    table[Stage.QUEUED] = frozenset({Stage.FETCHING, *FINAL})
    return table | {stage: frozenset() for stage in FINAL}


NEXT_STAGES = _next_stages()
"""From each stage to those that may follow. A running build goes forward only (stages may be left out), ends, or is
queued again when its daemon goes away. A waiting build may end with the result of an identical one."""


def fraction(stage: Stage, share: float = 0.0) -> float:
    """How much of the whole build is done, 0 to 1, at this share (0 to 1) of a stage that runs or succeeded."""
    begin = _BEGINS[stage]
    return begin + weight(stage) * min(max(share, 0.0), 1.0)


def weight(stage: Stage) -> float:
    """The stage's part of a whole build, 0 to 1; 0 for one that does not run."""
    if stage not in RUNNING:
        return 0.0
    return list(_BEGINS.values())[list(_BEGINS).index(stage) + 1] - _BEGINS[stage]
