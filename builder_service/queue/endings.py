"""What the end of a build's child means for the build, and how its failures read."""

from __future__ import annotations

import signal
from typing import NamedTuple

from builder_service.job import ErrorEvent, Stage
from builder_service.queue.events import Finished
from builder_service.queue.process import Outcome
from enginehouse.errors import Cancelled, EnginehouseError, Internal, ResourceExhausted


class Version(NamedTuple):
    """A version that a build ends with. `reused`: it was there before."""

    number: int
    reused: bool = False


def cancelled() -> Finished:
    return _failed(
        Cancelled("The build was cancelled; nothing was published.", reason="BUILD_CANCELLED"), Stage.CANCELLED
    )


def without_version(outcome: Outcome, limit: int) -> Finished:
    """The end of a build whose child went by itself and published nothing. `limit`: its memory, in bytes."""
    if outcome.over_limit:
        return _failed(_over_limit(outcome.memory_peak, limit))
    if isinstance(outcome.last, ErrorEvent):
        return Finished(Stage.FAILED, error=outcome.last)
    return _failed(_crashed(outcome))


def broken(error: Exception) -> Finished:
    """The end of a build that the daemon itself could not go on with."""
    if isinstance(error, EnginehouseError):
        return _failed(error)
    return _failed(Internal("The builder failed; its log has the details."))


def without_alias(error: EnginehouseError, engine: str, alias: str, version: int) -> Finished:
    """The end of a build whose version is published and whose alias could not be set."""
    message = (
        f"Version {version} of `{engine}` was published, but its alias `{alias}` could not be set: {error.message} "
        "Set the alias yourself, or build again: the version will be found."
    )
    metadata = {**error.metadata, "engine": engine, "version": str(version), "alias": alias}
    return Finished(Stage.FAILED, error=ErrorEvent(error.code.value[0], error.reason, message, metadata))


def _failed(error: EnginehouseError, stage: Stage = Stage.FAILED) -> Finished:
    return Finished(stage, error=ErrorEvent(error.code.value[0], error.reason, error.message, error.metadata))


def _over_limit(peak: int, limit: int) -> ResourceExhausted:
    return ResourceExhausted(
        f"The build held {peak >> 20} MiB of memory, above this builder's limit of {limit >> 20} MiB, and was stopped. "
        "Raise the builder's memory limit, or build on a larger machine.",
        reason="MEMORY_LIMIT",
        metadata={"subject": "build memory", "peak_bytes": peak, "limit_bytes": limit},
    )


def _name(number: int) -> str:
    """A signal's name; not each real-time signal has one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _crashed(outcome: Outcome) -> Internal:
    if outcome.returncode < 0:
        how = _name(-outcome.returncode)
        hint = " The machine may have run out of memory." if how == "SIGKILL" else ""
    else:
        how, hint = f"exit code {outcome.returncode}", ""
    return Internal(
        f"The build's process ended with {how} before it had a result.{hint} The builder's log has its last words.",
        reason="BUILD_CRASHED",
        metadata={"ended_with": how},
    )
