"""One build that runs: its child is started and listened to, and what it says is written down."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from builder_service.job import (
    ChildEvent,
    ErrorEvent,
    KeyEvent,
    LogEvent,
    ProgressEvent,
    Stage,
    StageEvent,
)
from builder_service.queue import eta
from builder_service.queue.events import NEXT_STAGES, RUNNING, Event, Log, Memory, Progress, Sample, Started, fraction
from builder_service.queue.process import Child, ChildSettings, Outcome
from builder_service.queue.state import Job
from enginehouse.errors import Internal, ResourceExhausted
from service_kit import logs

log = logs.logger("builder")

_PROGRESS_SECONDS = 0.2
"""Progress that comes faster is held back."""
_SILENCE_SECONDS = 0.75
_TICK_SECONDS = 0.2
"""Looked at every tick: when so long nothing was told, progress is made up, so that some comes once a second."""
_MEMORY_SECONDS = 1.0
_DRAIN_SECONDS = 0.5
"""A process that the child started and that left its group may hold its pipe open."""
_MOST_TOLD = 0.95
"""The share of a stage that its child may claim: it may count several things one after the other."""


class StageClock:
    """How far the stage that runs is. Times are of the monotonic clock."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.begin(Stage.FETCHING)

    def begin(self, stage: Stage) -> None:
        self.stage, self._share = stage, 0.0
        self.began = self._moved = time.monotonic()

    def fraction(self, told: float = 0.0) -> float:
        """How much of the whole build is done, where the child tells this share of the stage. Each call gives more."""
        now = time.monotonic()
        crept = eta.creep(self._share, now - self._moved, self.stage, self._job.estimate)
        self._share, self._moved = max(crept, min(told, _MOST_TOLD)), now
        return fraction(self.stage, self._share)


class RunningBuild:
    """A build from its turn until its child is gone. Making the object starts the work.

    Args:
        record: writes an event of this build down.
        on_start: gets the child's owner token.
        on_key: gets the build key; whether the build shall go on.
    """

    def __init__(
        self,
        job: Job,
        settings: ChildSettings,
        record: Callable[[Event], None],
        on_start: Callable[[str], None],
        on_key: Callable[[KeyEvent], bool],
    ) -> None:
        self.job, self._settings, self._record = job, settings, record
        self._on_start, self._on_key = on_start, on_key
        self.cancelled = self.interrupted = False
        self.error: Exception | None = None
        """Why the daemon could not go on with it."""
        self.ended = asyncio.Event()
        """Set when the end is written down, or the build is back in the queue."""
        self.key = ""
        self.leader = ""
        """The build whose result this one takes instead of its own child's."""
        self.token = ""
        self._child: Child | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._work = asyncio.create_task(self._run(), name=f"child of {job.operation}")
        self._clock = StageClock(job)
        self._held: ProgressEvent | None = None
        self._last: ProgressEvent | None = None
        self._progress_at = self._memory_at = time.monotonic()
        self._memory = 0

    @property
    def stage(self) -> Stage:
        return self._clock.stage

    @property
    def outcome(self) -> Outcome:
        """How the child ended; empty for one that was never started."""
        return self._child.outcome if self._child else Outcome()

    async def finish(self) -> None:
        """Returns when the child is gone; `outcome` is complete then."""
        await asyncio.wait({self._work})
        if not self._work.cancelled() and isinstance(error := self._work.exception(), Exception):
            log.error("the builder could not go on", operation=self.job.operation, exc_info=error)
            self.error = error

    def interrupt(self) -> None:
        """Ends the child as the daemon ends; `finish` returns within about a second. Of no effect on a build whose
        child is gone."""
        self.interrupted = not self._work.done()
        self._stop()

    def cancel(self) -> None:
        """Ends the child; `finish` returns within about a second."""
        self.cancelled = True
        self._stop()

    def _stop(self) -> None:
        """In a task of its own: whoever asked may not wait for it."""
        if self._child is not None and self._stopping is None:
            self._stopping = asyncio.create_task(self._end_child(self._child))

    async def _end_child(self, child: Child) -> None:
        """What the child had said before is still read: maybe that it publishes."""
        await child.kill()
        await asyncio.wait({self._work}, timeout=_DRAIN_SECONDS)
        self._work.cancel()

    async def _run(self) -> None:
        try:
            self._child = await Child.start(self.job.spec, self._settings, self._on_memory)
            self.token = self._child.token
            self._on_start(self.token)
            async with self._ticking():
                unwanted = self.cancelled or self.interrupted
                await (self._child.kill() if unwanted else self._listen(self._child))
        finally:
            if self._child is not None:
                await self._child.kill()
        self._flush_progress()
        if self.outcome.stderr_tail and _is_ours(self.outcome):
            tail = "\n".join(self.outcome.stderr_tail)
            log.error("the child's last words", operation=self.job.operation, stderr=tail)
        if self.outcome.memory_peak:
            self._note(Memory(0, self.outcome.memory_peak, self._settings.memory_limit))

    async def _listen(self, child: Child) -> None:
        async with aclosing(child.events()) as events:
            async for event in events:
                if isinstance(event, KeyEvent):
                    self.key = event.build_key
                    if not self._on_key(event):
                        return
                else:
                    self._take(event)

    def _take(self, event: ChildEvent) -> None:
        match event:
            case StageEvent(stage=later) if later in RUNNING and later in NEXT_STAGES[self.stage]:
                self._flush_progress()
                self._clock.begin(later)
                self._last = None
                self._record(Started(later, fraction(later), self.job.state.attempt))
            case ProgressEvent():
                self._held = event
                if time.monotonic() - self._progress_at >= _PROGRESS_SECONDS:
                    self._flush_progress()
            case LogEvent(level=level, text=text):
                self._record(Log(level, text))

    def _flush_progress(self) -> None:
        """Writes the newest progress, unless it says what the one before it said."""
        if self._held is not None and self._held != self._last:
            self._tell(self._held)
            self._last = self._held
        self._held = None

    def _tell(self, event: ProgressEvent) -> None:
        told = max(event.done, 0) / event.total if event.total > 0 else 0.0
        self._note(Progress(event.done, event.total, event.unit, self._clock.fraction(told)))
        self._progress_at = time.monotonic()

    @contextlib.asynccontextmanager
    async def _ticking(self) -> AsyncIterator[None]:
        ticker = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)

    async def _tick(self) -> None:
        """Moves the progress on while the child is silent: its own units once more, or the stage's seconds."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            if time.monotonic() - self._progress_at >= _SILENCE_SECONDS:
                self._last = self._held or self._last
                self._held = None
                seconds = int(time.monotonic() - self._clock.began)
                self._tell(self._last or ProgressEvent(seconds, 0, "seconds"))

    def _on_memory(self, current: int, peak: int) -> None:
        """Writes a sample when it differs by more than 2 %, at most one a second."""
        differs = abs(current - self._memory) * 50 > self._memory
        if differs and time.monotonic() - self._memory_at >= _MEMORY_SECONDS:
            self._memory, self._memory_at = current, time.monotonic()
            self._note(Memory(current, peak, self._settings.memory_limit))

    def _note(self, event: Sample) -> None:
        """Writes a sample. A full disk is no reason to end the build: its next stage may be."""
        try:
            self._record(event)
        except ResourceExhausted:
            log.warning("a sample could not be written down", operation=self.job.operation)


def _is_ours(outcome: Outcome) -> bool:
    """Whether a build ended by a fault of the builder or its machine, and not of what it was asked for."""
    if isinstance(outcome.last, ErrorEvent):
        return outcome.last.code == int(Internal.code.value[0])
    return outcome.last is None
