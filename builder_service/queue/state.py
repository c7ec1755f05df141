"""A build as the daemon keeps it, and what each event makes of it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from builder_service.estimate import Estimate
from builder_service.job import BuildJob, ErrorEvent, Stage
from builder_service.queue.events import FINAL, NEXT_STAGES, Event, Finished, Log, Memory, Progress, Started

WAITING = "Waiting for its turn."


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Where a build is. Times are seconds since the epoch, memory is in bytes.

    `start_time`: when this attempt began to run, None while it waits. `shares`: the operation whose result a finished
    build took. `logs`: the log lines that are kept; `dropped_logs`: how many were said beyond the limit.
    """

    stage: Stage = Stage.QUEUED
    stage_time: float
    create_time: float
    start_time: float | None = None
    end_time: float | None = None
    fraction: float = 0.0
    attempt: int = 1
    message: str = WAITING
    memory_peak: int = 0
    build_key: str = ""
    version: int = 0
    reused: bool = False
    shares: str = ""
    error: ErrorEvent | None = None
    last_sequence: int = 0
    logs: int = 0
    dropped_logs: int = 0

    @property
    def done(self) -> bool:
        return self.stage in FINAL


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A build as stored.

    `operation` is its name ("operations/..."), `request` the caller's message as bytes, `child` the owner token of the
    process that runs it (empty: none), `losses` how many daemons died while they ran it. Builds with the same
    `fingerprint` are one build; see sharing.py. `estimate` was made when the build was asked for; None: unknown.
    """

    id: int
    operation: str
    request: bytes
    spec: BuildJob
    state: State
    child: str
    losses: int
    priority: float
    fingerprint: str
    estimate: Estimate | None


def apply(state: State, event: Event, now: float) -> State:
    """The state after an event; a stage that may not follow is a broken invariant."""
    changes: dict[str, Any] = {"last_sequence": state.last_sequence + 1}
    match event:
        case Started():
            changes |= _started(state, event, now)
        case Progress(done=done, total=total, unit=unit, fraction=fraction):
            told = f"{done} of {total} {unit}" if total else f"{done} {unit}"
            changes |= {"fraction": max(fraction, state.fraction), "message": told.rstrip()}
        case Log(text=text):
            changes |= {"message": text, "logs": state.logs + 1}
        case Memory(peak=peak):
            changes |= {"memory_peak": max(peak, state.memory_peak)}
        case Finished():
            changes |= _finished(state, event, now)
    return msgspec.structs.replace(state, **changes)


def _started(state: State, event: Started, now: float) -> dict[str, Any]:
    assert event.stage in NEXT_STAGES[state.stage], f"{state.stage} -> {event.stage}"
    changes: dict[str, Any] = {"stage": event.stage, "stage_time": now, "attempt": event.attempt}
    if event.stage is Stage.QUEUED:
        return changes | {"fraction": 0.0, "start_time": None, "message": WAITING}
    begins = now if state.stage is Stage.QUEUED else state.start_time
    return changes | {"fraction": max(event.fraction, state.fraction), "start_time": begins, "message": ""}


def _finished(state: State, event: Finished, now: float) -> dict[str, Any]:
    assert event.stage in FINAL, event.stage
    assert event.stage in NEXT_STAGES[state.stage], f"{state.stage} -> {event.stage}"
    return {
        "stage": event.stage,
        "stage_time": now,
        "end_time": now,
        "fraction": 1.0 if event.stage is Stage.SUCCEEDED else state.fraction,
        "version": event.version,
        "reused": event.reused,
        "shares": event.shares,
        "error": event.error,
        "message": event.error.message if event.error else "",
    }
