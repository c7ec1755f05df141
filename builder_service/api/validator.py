"""`validate_only` in the daemon: each check runs in a child process, so that no checkpoint can hurt the daemon."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from builder_service.api.convert_proto import typed
from builder_service.estimate import Estimate, estimate
from builder_service.job import BuildJob, ErrorEvent, KeyEvent, LogEvent, ResultEvent
from builder_service.queue.process import Child, ChildSettings
from enginehouse.errors import DeadlineExceeded, Internal, ResourceExhausted
from service_kit import logs

log = logs.logger("builder.validate")


class Validated(NamedTuple):
    """What a check found. `build_key` is empty where the weights were not at hand; `existing` is the version that has
    the key, 0 for none; `notes` are lines for a person."""

    estimate: Estimate | None
    build_key: str
    existing: int
    notes: tuple[str, ...]


class Validator:
    """Runs checks, `places` at a time; up to `waiting` more wait for a place.

    Args:
        settings: how children run; the builds' own.
        seconds: the most time for one check. Reading a checkpoint for its digest takes most of it.
    """

    def __init__(self, settings: ChildSettings, places: int = 2, waiting: int = 32, seconds: float = 300.0) -> None:
        self._settings, self._places, self._seconds = settings, asyncio.Semaphore(places), seconds
        self._limit, self._calls = places + waiting, 0

    async def check(self, job: BuildJob) -> Validated:
        """Checks a build. Cancelling the call ends its child.

        Raises:
            EnginehouseError: what the build would fail with; ResourceExhausted (VALIDATIONS_FULL) when too many
                checks wait; DeadlineExceeded (VALIDATION_TIMEOUT).
        """
        if self._calls >= self._limit:
            raise ResourceExhausted(
                f"{self._calls} checks run or wait already; try again later.",
                reason="VALIDATIONS_FULL",
                metadata={"subject": "validations", "limit": self._limit},
                retry_after=5.0,
            )
        self._calls += 1
        try:
            async with self._places, asyncio.timeout(self._seconds):
                found = await self._run(msgspec.structs.replace(job, validate_only=True))
        except TimeoutError:
            raise DeadlineExceeded(
                f"The check took longer than {self._seconds:.0f} s and was ended; start the build, which has no limit.",
                reason="VALIDATION_TIMEOUT",
                metadata={"limit_seconds": self._seconds},
            ) from None
        finally:
            self._calls -= 1
        return found._replace(estimate=await asyncio.to_thread(estimate, job))

    async def _run(self, job: BuildJob) -> Validated:
        child = await Child.start(job, self._settings, lambda current, peak: None)
        key, notes = "", []
        try:
            async with aclosing(child.events()) as events:
                async for event in events:
                    if isinstance(event, KeyEvent):
                        key = event.build_key
                    elif isinstance(event, LogEvent):
                        notes.append(event.text)
        finally:
            await child.kill()
        last = child.outcome.last
        if isinstance(last, ErrorEvent):
            raise typed(last)
        if not isinstance(last, ResultEvent):
            raise self._lost(child)
        return Validated(None, key, last.version, tuple(notes))

    def _lost(self, child: Child) -> Internal | ResourceExhausted:
        outcome = child.outcome
        log.error("a check's process ended early", returncode=outcome.returncode, stderr="\n".join(outcome.stderr_tail))
        if outcome.over_limit:
            limit = self._settings.memory_limit
            return ResourceExhausted(
                f"Checking the checkpoint needs more memory than this builder's limit of {limit >> 20} MiB; raise it.",
                reason="MEMORY_LIMIT",
                metadata={"subject": "build memory", "limit_bytes": limit},
            )
        return Internal("The check's process ended before it had a result; the builder's log has its last words.")
