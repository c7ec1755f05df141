"""Runs queued builds, each in a child process, and writes down what happens. One asyncio task for each place.

The laws: a build ends as exactly one of SUCCEEDED, FAILED, CANCELLED; a child that is gone has left nothing in the
store's staging; a build that ran when the daemon went away is queued again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import weakref
from contextlib import aclosing
from dataclasses import dataclass, field

from builder_service.events import NEXT_STAGES, RUNNING, Event, Finished, Log, Memory, Progress, Started, fraction
from builder_service.job import (
    BuildJob,
    ChildEvent,
    ErrorEvent,
    KeyEvent,
    LogEvent,
    ProgressEvent,
    ResultEvent,
    Stage,
    StageEvent,
)
from builder_service.jobs import Job, JobStore
from builder_service.process import Child, ChildSettings, Outcome
from engine_store import EngineStore
from engine_store.owner import owner_alive, owner_pid
from enginehouse.errors import Cancelled, EnginehouseError, Internal, ResourceExhausted
from service_kit import logs

log = logs.logger("builder")

_PROGRESS_SECONDS = 0.2
_RETRY_SECONDS = 5.0
_MEMORY_SECONDS = 1.0


class Changes:
    """Lets readers wait for the next change of one operation. An event lives as long as somebody waits for it."""

    def __init__(self) -> None:
        self._events: weakref.WeakValueDictionary[str, asyncio.Event] = weakref.WeakValueDictionary()

    def next(self, operation: str) -> asyncio.Event:
        """Set at the operation's next change. Take it before reading the state."""
        event = self._events.get(operation)
        if event is None:
            event = self._events[operation] = asyncio.Event()
        return event

    def notify(self, operation: str) -> None:
        if event := self._events.pop(operation, None):
            event.set()


@dataclass
class _Run:
    """A build that runs now."""

    job: Job
    cancelled: bool = False
    child: Child | None = None
    held_progress: Progress | None = None
    """The newest progress that was not written yet: at most five a second are."""
    progress: Progress | None = None
    progress_at: float = 0.0
    memory: int = 0
    memory_at: float = 0.0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """The daemon's builds. `start` takes up what an earlier daemon left; `close` puts back what runs.

    Args:
        places: how many builds run at once.
    """

    def __init__(self, jobs: JobStore, store: EngineStore, settings: ChildSettings, places: int = 1) -> None:
        self.jobs, self.changes = jobs, Changes()
        self._store, self._settings, self._places = store, settings, places
        self._runs: dict[str, _Run] = {}
        self._wake = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Ends children of a daemon that died, queues their builds again, and begins to work."""
        for job in self.jobs.running():
            await _end_orphan(job.child)
            self.jobs.requeue(job.operation, lost=True)
            log.warning("a build was lost with its daemon", operation=job.operation, attempt=job.state.attempt)
        recovered = await asyncio.to_thread(self._store.recover)
        log.info("store recovered", completed=recovered.completed, removed=recovered.removed)
        self._workers = [asyncio.create_task(self._work(), name=f"builds {n}") for n in range(self._places)]

    async def close(self) -> None:
        """Ends the running children and queues their builds again."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def submit(self, spec: BuildJob, request: bytes, request_id: str = "") -> Job:
        """Queues a build; see `JobStore.submit`."""
        job = self.jobs.submit(spec, request, request_id)
        self._wake.set()
        return job

    async def cancel(self, operation: str) -> None:
        """Cancels a build that waits or runs, within about two seconds. One that is done stays as it is."""
        job = self.jobs.get(operation)
        run = self._runs.get(operation)
        if run is not None:
            run.cancelled = True
            if run.child is not None:
                await run.child.kill()
            await run.ended.wait()
        elif not job.state.done:
            self._record(operation, Finished(Stage.CANCELLED, error=_as_event(_cancelled())))

    async def until_done(self, operation: str) -> None:
        """Returns once the build is done."""
        while True:
            changed = self.changes.next(operation)
            if self.jobs.get(operation).state.done:
                return
            await changed.wait()

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            job = self.jobs.next_queued()
            if job is None:
                await self._wake.wait()
                continue
            try:
                await self._run(job)
            except Exception:  # the queue itself failed, for example on a full disk: the place must not be lost
                log.exception("a build could not be written down", operation=job.operation)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _run(self, job: Job) -> None:
        """One build from its turn to its end, or back into the queue when this task is cancelled."""
        run = self._runs[job.operation] = _Run(job)
        finished: Finished | None = None
        try:
            self._record(job.operation, Started(Stage.FETCHING, fraction(Stage.FETCHING), job.state.attempt))
            log.info("build started", operation=job.operation, engine=job.spec.engine_id, attempt=job.state.attempt)
            finished = await self._build(run)
        except EnginehouseError as error:
            log.exception("the builder could not go on", operation=job.operation)
            finished = Finished(Stage.FAILED, error=_as_event(error))
        except Exception:
            log.exception("the builder failed", operation=job.operation)
            finished = Finished(Stage.FAILED, error=_as_event(Internal("The builder failed; its log has the details.")))
        finally:
            await self._clear_staging()
            try:
                await self._end(run, finished)
            finally:
                del self._runs[job.operation]
                run.ended.set()

    async def _end(self, run: _Run, finished: Finished | None) -> None:
        """Writes the end down. None: the daemon ends, and the build goes back into the queue. On a full disk it waits
        for space: a build whose end nobody learns would be watched for ever."""
        operation = run.job.operation
        if finished is None and run.cancelled:
            finished = Finished(Stage.CANCELLED, error=_as_event(_cancelled()))
        if finished is None:
            self.jobs.requeue(operation, lost=False)
            self.changes.notify(operation)
            return
        while not self._try_record(operation, finished):
            await asyncio.sleep(_RETRY_SECONDS)
        reason = finished.error.reason if finished.error else ""
        log.info("build ended", operation=operation, stage=finished.stage, version=finished.version, reason=reason)

    async def _clear_staging(self) -> None:
        """Removes what a killed child left. A failure is no failure of the build: the next start repeats this."""
        try:
            await asyncio.to_thread(self._store.recover)
        except EnginehouseError:
            log.exception("clearing the store's staging failed")

    async def _build(self, run: _Run) -> Finished:
        operation = run.job.operation
        run.child = await Child.start(run.job.spec, self._settings, lambda now, peak: self._on_memory(run, now, peak))
        try:
            self.jobs.set_child(operation, run.child.token)
            if run.cancelled:
                await run.child.kill()
            async with aclosing(run.child.events()) as events:
                async for event in events:
                    self._on_event(run, event)
        finally:
            await run.child.kill()
        self._flush_progress(run)
        outcome = run.child.outcome
        if outcome.stderr_tail and not isinstance(outcome.last, ResultEvent):
            log.error("the child's last words", operation=operation, stderr="\n".join(outcome.stderr_tail))
        if outcome.memory_peak:
            self._record(operation, Memory(0, outcome.memory_peak, self._settings.memory_limit))
        return _conclude(run, self._settings.memory_limit)

    def _on_event(self, run: _Run, event: ChildEvent) -> None:
        operation = run.job.operation
        stage = self.jobs.get(operation).state.stage
        match event:
            case StageEvent(stage=later) if later in RUNNING and later in NEXT_STAGES[stage]:
                self._flush_progress(run)
                self._record(operation, Started(later, fraction(later), run.job.state.attempt))
            case ProgressEvent(done=done, total=total, unit=unit):
                run.held_progress = Progress(done, total, unit, fraction(stage, done, total))
                if time.monotonic() - run.progress_at >= _PROGRESS_SECONDS:
                    self._flush_progress(run)
            case LogEvent(level=level, text=text):
                self._record(operation, Log(level, text))
            case KeyEvent(build_key=key):
                self.jobs.set_build_key(operation, key)

    def _flush_progress(self, run: _Run) -> None:
        """Writes the newest progress, unless it says what the one before it said."""
        if run.held_progress not in (None, run.progress):
            run.progress, run.progress_at = run.held_progress, time.monotonic()
            self._record(run.job.operation, run.progress)
        run.held_progress = None

    def _on_memory(self, run: _Run, current: int, peak: int) -> None:
        """Writes a sample when it differs by more than 2 %, at most one a second."""
        differs = abs(current - run.memory) * 50 > run.memory
        if differs and time.monotonic() - run.memory_at >= _MEMORY_SECONDS:
            run.memory, run.memory_at = current, time.monotonic()
            self._record(run.job.operation, Memory(current, peak, self._settings.memory_limit))

    def _try_record(self, operation: str, event: Event) -> bool:
        """Whether there was space to write the event down."""
        try:
            self._record(operation, event)
        except ResourceExhausted:
            log.exception("a build's end could not be written down", operation=operation)
            return False
        return True

    def _record(self, operation: str, event: Event) -> None:
        self.jobs.record(operation, event)
        self.changes.notify(operation)


def _conclude(run: _Run, limit: int) -> Finished:
    """What a child's end means for its build. A version that was published counts, whatever came after."""
    assert run.child is not None
    outcome = run.child.outcome
    if isinstance(outcome.last, ResultEvent):
        return Finished(Stage.SUCCEEDED, version=outcome.last.version, reused=outcome.last.reused)
    if run.cancelled:
        return Finished(Stage.CANCELLED, error=_as_event(_cancelled()))
    if outcome.over_limit:
        return Finished(Stage.FAILED, error=_as_event(_over_limit(outcome.memory_peak, limit)))
    if isinstance(outcome.last, ErrorEvent):
        return Finished(Stage.FAILED, error=outcome.last)
    return Finished(Stage.FAILED, error=_as_event(_crashed(outcome)))


def _cancelled() -> Cancelled:
    return Cancelled("The build was cancelled; nothing was published.", reason="BUILD_CANCELLED")


def _over_limit(peak: int, limit: int) -> ResourceExhausted:
    return ResourceExhausted(
        f"The build held {peak >> 20} MiB of memory, above this builder's limit of {limit >> 20} MiB, and was stopped. "
        "Raise the builder's memory limit, or build on a larger machine.",
        reason="MEMORY_LIMIT",
        metadata={"subject": "build memory", "peak_bytes": peak, "limit_bytes": limit},
    )


def _crashed(outcome: Outcome) -> Internal:
    if outcome.returncode < 0:
        how = signal.Signals(-outcome.returncode).name
        hint = " The machine may have run out of memory." if how == "SIGKILL" else ""
    else:
        how, hint = f"exit code {outcome.returncode}", ""
    return Internal(
        f"The build's process ended with {how} before it had a result.{hint} The builder's log has its last words.",
        reason="BUILD_CRASHED",
        metadata={"ended_with": how},
    )


def _as_event(error: EnginehouseError) -> ErrorEvent:
    return ErrorEvent(error.code.value[0], error.reason, error.message, error.metadata)


async def _end_orphan(token: str) -> None:
    """Kills the process group of a dead daemon's child, if it still lives."""
    if token and owner_alive(token):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(owner_pid(token), signal.SIGKILL)
        while owner_alive(token):
            await asyncio.sleep(0.02)
