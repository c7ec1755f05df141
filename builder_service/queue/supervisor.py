"""Runs queued builds, each in a child process, and writes down what happens.

The laws: a build ends as exactly one of SUCCEEDED, FAILED, CANCELLED; a version that its child published counts,
whatever came after; a child that is gone has left nothing in the store's staging; a build that ran when the daemon
went away is queued again; identical builds run once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import weakref
from collections.abc import Callable
from functools import partial

from builder_service.estimate import Estimate
from builder_service.job import BuildJob, KeyEvent, ResultEvent, Stage
from builder_service.queue import endings
from builder_service.queue.endings import Version
from builder_service.queue.events import Event, Finished, Log, Started
from builder_service.queue.jobs import JobStore
from builder_service.queue.process import ChildSettings
from builder_service.queue.running import RunningBuild
from builder_service.queue.sharing import Sharing, may_share
from builder_service.queue.state import Job
from builder_service.queue.turns import Budget, choose
from engine_store import EngineStore
from engine_store.owner import owner_alive, owner_pid
from enginehouse.errors import EnginehouseError, ResourceExhausted
from service_kit import logs

log = logs.logger("builder")

_RETRY_SECONDS = 5.0
_CANCEL_SECONDS = 2.0
_CLEAR_SECONDS = 0.5
"""How long the end of a build waits for its staging to be cleared; a slow store clears it after that."""
_CLOSE_SECONDS = 10.0
"""How long the ends of builds are waited for when the daemon ends; the next one takes up what was not written down."""
_EXPIRE_SECONDS = 60.0


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


class Supervisor:
    """The daemon's builds. `recover` takes up what an earlier daemon left, `start` begins to work, `close` puts back
    what runs.

    Args:
        places: how many builds run at once.
        memory_budget: what all builds together are expected to hold at most, in bytes; 0: no limit.
    """

    def __init__(
        self, jobs: JobStore, store: EngineStore, settings: ChildSettings, places: int = 1, memory_budget: int = 0
    ) -> None:
        self.jobs, self.changes = jobs, Changes()
        self._store, self._settings, self._budget = store, settings, Budget(memory_budget, places)
        self._sharing = Sharing()
        self._runs: dict[str, RunningBuild] = {}
        self._overtaken: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._scheduler: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._clearing: set[asyncio.Task[None]] = set()

    async def recover(self) -> None:
        """Ends children of a daemon that died, and ends or queues again what they built."""
        lost = self.jobs.running()
        for job in lost:
            await _end_orphan(job.child)
        recovered = await asyncio.to_thread(self._store.recover, [job.child for job in lost])
        log.info("store recovered", completed=recovered.completed, removed=recovered.removed)
        for job in lost:
            version = await self._published(job.spec, job.state.build_key, job.child)
            if version is not None:
                self._record(job.operation, await self._succeeded(job.spec, version))
            else:
                self.jobs.lose(job.operation, power_cut=bool(job.child) and owner_alive(job.child) is None)
            log.warning("a build was lost with its daemon", operation=job.operation, attempt=job.state.attempt)

    async def start(self) -> None:
        """Begins to run builds; `recover` comes first."""
        self._scheduler = asyncio.create_task(self._schedule(), name="build scheduler")

    async def close(self) -> None:
        """Ends the running children and queues their builds again."""
        if self._scheduler is not None:
            self._scheduler.cancel()
            await asyncio.gather(self._scheduler, return_exceptions=True)
        for run in self._runs.values():
            run.interrupt()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def submit(
        self,
        spec: BuildJob,
        request: bytes,
        request_id: str = "",
        *,
        priority: float = 0.5,
        estimate: Estimate | None = None,
        stamp: str = "",
    ) -> Job:
        """Queues a build; see `JobStore.submit`."""
        job = self.jobs.submit(spec, request, request_id, priority=priority, estimate=estimate, stamp=stamp)
        if job.state.last_sequence == 0 and (leader := self.leader(job)):
            self._tell(job.operation, _shares(leader))
        self._wake.set()
        return job

    def leader(self, job: Job) -> str:
        """The operation whose result a build takes or took; empty for one that builds itself."""
        if job.state.stage is not Stage.QUEUED:
            return job.state.shares
        return self._sharing.leader(job.operation, job.fingerprint)

    async def cancel(self, operation: str) -> None:
        """Cancels a build that waits or runs, within about two seconds. One that is done stays as it is. So does one
        that is published already, which succeeds; when the store is too slow to say so, this does not wait for it."""
        job = self.jobs.get(operation)
        if run := self._runs.get(operation):
            run.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CANCEL_SECONDS):
                    await run.ended.wait()
        elif not job.state.done:
            self._record(operation, endings.cancelled())
            self._sharing.ended(operation, job.fingerprint)
            self._overtaken.pop(operation, None)
            self._wake.set()

    async def until_done(self, operation: str) -> None:
        """Returns once the build is done."""
        while True:
            changed = self.changes.next(operation)
            if self.jobs.get(operation).state.done:
                return
            await changed.wait()

    # Choosing

    async def _schedule(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._start_some()
                self.jobs.expire()
            except Exception:  # the queue itself failed, for example on a full disk: the daemon must go on
                log.exception("the queue failed")
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EXPIRE_SECONDS):
                    await self._wake.wait()

    def _start_some(self) -> None:
        while len(self._runs) < self._budget.places:
            alone = (b for b in self.jobs.waiting() if not self._sharing.leader(b.operation, b.fingerprint))
            needs = [self._need(run.job) for run in self._runs.values()]
            chosen = choose(alone, needs, self._budget, self._overtaken)
            if chosen.start is None:
                return
            for operation in chosen.overtaken:
                self._overtaken[operation] = self._overtaken.get(operation, 0) + 1
            self._begin(self.jobs.get(chosen.start.operation))

    def _need(self, job: Job) -> int:
        return self._budget.need(job.estimate.memory_bytes if job.estimate else None)

    def _begin(self, job: Job) -> None:
        operation = job.operation
        self._record(operation, Started(Stage.FETCHING, 0.0, job.state.attempt))
        run = RunningBuild(
            job,
            self._settings,
            record=partial(self._record, operation),
            on_start=partial(self.jobs.set_child, operation),
            on_key=lambda event: self._on_key(run, event),
        )
        self._runs[operation] = run
        self._sharing.lead(operation, job.fingerprint)
        self._overtaken.pop(operation, None)
        log.info("build started", operation=operation, engine=job.spec.engine_id, attempt=job.state.attempt)
        task = asyncio.create_task(self._run(run), name=operation)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        for follower in self.jobs.waiting_like(job.fingerprint):
            self._tell(follower, _shares(operation))

    # Running

    async def _run(self, run: RunningBuild) -> None:
        """One build from its turn to its end, or back into the queue."""
        job = run.job
        try:
            await run.finish()
            finished = await self._conclude(run)
            if finished is None:
                await self._write(lambda: self.jobs.requeue(job.operation, job.state.attempt + (not run.leader)))
            else:
                await self._finish(job.operation, finished)
                await self._end_followers(job, finished)
        finally:
            del self._runs[job.operation]
            self._sharing.ended(job.operation, job.fingerprint)
            self._follow(run)
            self.changes.notify(job.operation)
            run.ended.set()
            self._wake.set()

    async def _conclude(self, run: RunningBuild) -> Finished | None:
        """How a build whose child is gone ends. None: it goes back into the queue."""
        try:
            if (version := await self._version(run)) is not None:
                return await self._succeeded(run.job.spec, version)
        except Exception as error:
            log.exception("the builder cannot tell what a build published", operation=run.job.operation)
            return endings.broken(error)
        if run.cancelled:
            return endings.cancelled()
        if run.leader or run.interrupted:
            return None
        if run.error is not None:
            return endings.broken(run.error)
        return endings.without_version(run.outcome, self._settings.memory_limit)

    async def _version(self, run: RunningBuild) -> Version | None:
        """What the child published or found. Clears up after one that did not come so far."""
        last = run.outcome.last
        if isinstance(last, ResultEvent):
            return Version(last.version, last.reused)
        publishing = run.stage is Stage.PUBLISHING
        await self._clear_staging(wait=publishing)
        return await self._published(run.job.spec, run.key, run.token) if publishing else None

    async def _finish(self, operation: str, finished: Finished) -> None:
        """Writes the end of a build down."""
        await self._write(lambda: self._record(operation, finished))
        reason = finished.error.reason if finished.error else ""
        log.info("build ended", operation=operation, stage=finished.stage, version=finished.version, reason=reason)

    async def _write(self, write: Callable[[], object]) -> None:
        """Tries until it is written, on a full disk once there is space: a build whose end nobody learns would be
        watched for ever."""
        while True:
            try:
                write()
            except (ResourceExhausted, sqlite3.Error):  # the latter: another program holds the queue's lock, say
                log.exception("a build's end could not be written down")
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _succeeded(self, spec: BuildJob, version: Version) -> Finished:
        """Sets the alias, which comes before the end: a daemon that dies between the two repeats it."""
        try:
            if spec.alias:
                await asyncio.to_thread(self._store.set_alias, spec.engine_id, spec.alias, version.number)
        except EnginehouseError as error:
            log.warning("an alias could not be set", engine=spec.engine_id, alias=spec.alias, reason=error.reason)
            return endings.without_alias(error, spec.engine_id, spec.alias, version.number)
        return Finished(Stage.SUCCEEDED, version=version.number, reused=version.reused)

    async def _published(self, spec: BuildJob, key: str, token: str) -> Version | None:
        """What a child that is gone had published. Where the store cannot tell, nothing: the next build finds it."""
        try:
            number = await asyncio.to_thread(self._published_number, spec, key, token)
        except EnginehouseError:
            log.exception("the store cannot tell what a build published", engine=spec.engine_id)
            return None
        return None if number is None else Version(number)

    def _published_number(self, spec: BuildJob, key: str, token: str) -> int | None:
        """A daemon may die before it notes the key that its child told. The next build finds the version by its key
        then; a forced one would not, so that all keys of the engine are looked through for it."""
        keys = [key] if key else []
        if spec.force and not key:
            numbers = self._store.version_numbers(spec.engine_id)
            keys = list({self._store.get(spec.engine_id, number).build_key for number in numbers})
        found = (self._store.published_by(spec.engine_id, each, token) for each in keys if token)
        return next((number for number in found if number is not None), None)

    async def _clear_staging(self, wait: bool) -> None:
        """Removes what a killed child left, or completes what it had decided on; goes on by itself in a slow store.
        A failure is no failure of the build: the next start repeats this."""

        async def clear() -> None:
            try:
                await asyncio.to_thread(self._store.recover)
            except EnginehouseError:
                log.exception("clearing the store's staging failed")

        task = asyncio.create_task(clear())
        self._clearing.add(task)
        task.add_done_callback(self._clearing.discard)
        await asyncio.wait({task}, timeout=None if wait else _CLEAR_SECONDS)

    # Sharing

    def _on_key(self, run: RunningBuild, event: KeyEvent) -> bool:
        """Whether a build shall go on now that its key is known: not where another one that runs has it too."""
        self.jobs.set_build_key(run.job.operation, event.build_key)
        for other in self._runs.values():
            same = other is not run and other.key == event.build_key and may_share(run.job.spec, other.job.spec)
            if same and not (event.existing or other.cancelled or other.leader):
                run.leader = other.job.operation
                return False
        return True

    def _follow(self, run: RunningBuild) -> None:
        """A build that was ended for another one's sake waits for it now, if that one still runs."""
        if run.leader in self._runs and not self.jobs.get(run.job.operation).state.done:
            self._sharing.follow(run.job.operation, run.leader)
            self._tell(run.job.operation, _shares(run.leader))

    async def _end_followers(self, leader: Job, finished: Finished) -> None:
        """Ends the builds that wait for this one's result, each with its own alias. A cancellation is none."""
        if finished.stage is Stage.CANCELLED:
            return
        for operation in [*self.jobs.waiting_like(leader.fingerprint), *self._sharing.followers(leader.operation)]:
            job = self.jobs.get(operation)
            end = finished
            if finished.version:
                end = await self._succeeded(job.spec, Version(finished.version, reused=True))
            if self.jobs.get(operation).state.stage is Stage.QUEUED:  # else it was cancelled meanwhile
                await self._finish(operation, Finished(end.stage, end.version, end.reused, end.error, leader.operation))

    def _tell(self, operation: str, line: Log) -> None:
        """A line for those who watch; a full disk is no reason not to go on."""
        with contextlib.suppress(ResourceExhausted):
            self._record(operation, line)

    def _record(self, operation: str, event: Event) -> None:
        self.jobs.record(operation, event)
        self.changes.notify(operation)


def _shares(leader: str) -> Log:
    return Log("info", f"An identical build runs: {leader}. This one waits for its result.")


async def _end_orphan(token: str) -> None:
    """Kills the process group of a dead daemon's child, if it still lives."""
    if token and owner_alive(token):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(owner_pid(token), signal.SIGKILL)
        while owner_alive(token):
            await asyncio.sleep(0.02)
