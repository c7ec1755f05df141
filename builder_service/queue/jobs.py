"""The queue and history of builds in SQLite (WAL, on local disk): what was accepted survives the daemon."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from builder_service.estimate import Estimate
from builder_service.job import BuildJob, ErrorEvent, Stage
from builder_service.queue.database import Database
from builder_service.queue.events import RUNNING, Event, Finished, Log, Sample, Started, Stored
from builder_service.queue.sharing import fingerprint
from builder_service.queue.state import Job, State, apply
from builder_service.queue.turns import PATIENCE_SECONDS, Waiting, turn
from enginehouse.errors import AlreadyExists, FailedPrecondition, NotFound, ResourceExhausted

MAX_LOSSES = 3
"""A build whose daemon died this often while it ran is given up: it may be the cause."""
HISTORY_SECONDS = 30 * 86_400.0
IDENTICAL_FACTOR = 10
"""Identical builds that wait count as one against the queue's limit; all together may be this many times the limit."""
_LOST_SEQUENCES = 10_000
"""What a power cut may have taken back of a lost build's events, whose numbers watchers know, is not numbered again."""
_THIN_EVERY = 256
_COLUMNS = "id, operation, request, spec, state, child, losses, priority, fingerprint, estimate"
_EVENT = msgspec.json.Decoder(Event)
_STATE, _SPEC = msgspec.json.Decoder(State), msgspec.json.Decoder(BuildJob)
_ESTIMATE: msgspec.json.Decoder[Estimate | None] = msgspec.json.Decoder(Estimate | None)


class JobStore:
    """All builds of one daemon. One thread uses it; each call is one transaction, on disk when it returns: except for
    what runs meanwhile (progress, memory, the build key), which a power cut may take back.

    Args:
        path: the database, on local disk; made where it is missing.
        max_queued: builds that may wait, identical ones counted once; one more is ResourceExhausted.
        max_done: finished builds that are kept, those that ended last.
        history_seconds: for how long finished builds are kept at most.
        max_samples: progress and memory events that are kept of each build, about, the newest.
        max_logs: log lines that are kept of each build, the first; a last line says how many were dropped.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_queued: int = 100,
        max_done: int = 1000,
        history_seconds: float = HISTORY_SECONDS,
        max_samples: int = 10_000,
        max_logs: int = 1000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_queued, self._max_done, self._history_seconds = max_queued, max_done, history_seconds
        self._max_samples, self._max_logs = max_samples, max_logs
        self.clock = clock
        self.database = Database(path)
        latest = self.database.execute(
            f"SELECT max(turn + priority * {PATIENCE_SECONDS}) FROM jobs WHERE ended IS NULL"
        )
        self._entered: float = latest.fetchone()[0] or 0.0

    def close(self) -> None:
        self.database.close()

    # Waiting

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
        """Queues a build. The same request_id with the same request answers with the build it made.

        Args:
            priority: 0 to 1, higher first.
            stamp: the source's `source_stamp`.

        Raises: AlreadyExists for a used request_id with another request; ResourceExhausted when the queue is full.
        """
        with self.database.transaction():
            if request_id and (known := self._row("request_id = ?", request_id)):
                if known.request != request:
                    raise AlreadyExists(
                        "This `request_id` was used for another request; make a new one.",
                        reason="REQUEST_ID_REUSED",
                        metadata={"field": "request_id", "operation": known.operation},
                    )
                return known
            same = fingerprint(spec, stamp)
            self._refuse_full_queue(same)
            operation, now = f"operations/{uuid.uuid4().hex}", self.clock()
            self._entered = max(self._entered, now)  # a clock that was set back lets nobody in before others
            self._insert(
                operation=operation,
                request_id=request_id or None,
                request=request,
                spec=msgspec.json.encode(spec),
                stage=Stage.QUEUED,
                state=msgspec.json.encode(State(stage_time=now, create_time=now)),
                priority=priority,
                turn=turn(priority, self._entered),
                fingerprint=same,
                estimate=msgspec.json.encode(estimate),
                memory=estimate.memory_bytes if estimate else None,
            )
            return self.get(operation)

    def waiting(self) -> list[Waiting]:
        """The builds that wait, in their turn."""
        query = "SELECT operation, fingerprint, memory FROM jobs WHERE stage = ? ORDER BY turn, id"
        return [Waiting(*row) for row in self.database.execute(query, Stage.QUEUED)]

    def waiting_like(self, same: str) -> list[str]:
        """The operations that wait with this fingerprint, in their turn."""
        return [build.operation for build in self.waiting() if same and build.fingerprint == same]

    def queue_position(self, job: Job) -> int:
        """How many builds come before this one, those that run included; 0 when it does not wait."""
        if job.state.stage is not Stage.QUEUED:
            return 0
        (mine,) = self.database.execute("SELECT turn FROM jobs WHERE id = ?", job.id).fetchone()
        before = "SELECT count(*) FROM jobs WHERE stage = ? AND (turn, id) < (?, ?)"
        running = f"SELECT count(*) FROM jobs WHERE stage IN ({_marks(RUNNING)})"
        return sum(
            int(found.fetchone()[0])
            for found in (
                self.database.execute(before, Stage.QUEUED, mine, job.id),
                self.database.execute(running, *RUNNING),
            )
        )

    # Reading

    def get(self, operation: str) -> Job:
        """The build behind an operation; NotFound when there is none."""
        job = self._row("operation = ?", operation)
        if job is None:
            raise NotFound(
                f"There is no operation `{operation[:120]}`; list them to see which there are.",
                reason="OPERATION_NOT_FOUND",
                metadata={"operation": operation[:120]},
            )
        return job

    def page(self, size: int, before: int | None = None) -> list[Job]:
        """The newest builds, at most `size`; only those with an id below `before`."""
        return self._rows("id < ? ORDER BY id DESC LIMIT ?", (1 << 63) - 1 if before is None else before, size)

    def running(self) -> list[Job]:
        """The builds that are neither waiting nor done."""
        return self._rows(f"stage IN ({_marks(RUNNING)}) ORDER BY id", *RUNNING)

    def unfinished(self) -> int:
        """How many builds wait or run."""
        return int(self.database.execute("SELECT count(*) FROM jobs WHERE ended IS NULL").fetchone()[0])

    def events_after(self, operation: str, sequence: int, limit: int = 500) -> list[Stored]:
        """The kept events after `sequence`, in order, at most `limit`."""
        query = "SELECT sequence, time, payload FROM events WHERE job = ? AND sequence > ? ORDER BY sequence LIMIT ?"
        rows = self.database.execute(query, self.get(operation).id, sequence, limit)
        return [Stored(number, when, _EVENT.decode(payload)) for number, when, payload in rows]

    # Writing

    def together(self) -> AbstractContextManager[None]:
        """Makes the calls inside one transaction."""
        return self.database.transaction()

    def record(self, operation: str, event: Event) -> Job:
        """Adds an event and what follows from it for the build."""
        job = self.get(operation)
        full = isinstance(event, Log) and job.state.logs >= self._max_logs
        with self.database.transaction(durable=not (full or isinstance(event, Sample))):
            if full:
                dropped = job.state.dropped_logs + 1
                return self._save(job, msgspec.structs.replace(job.state, dropped_logs=dropped))
            if isinstance(event, Finished) and job.state.dropped_logs:
                job = self._append(job, Log("warning", f"{job.state.dropped_logs} more log lines were dropped."))
            job = self._append(job, event)
            if job.state.done:
                self.expire()
            return job

    def set_build_key(self, operation: str, build_key: str) -> None:
        """Notes the key once it is known. No event: it is read with the operation."""
        with self.database.transaction(durable=False):
            job = self.get(operation)
            self._save(job, msgspec.structs.replace(job.state, build_key=build_key))

    def set_child(self, operation: str, child: str) -> None:
        """Notes which process runs the build, so that a later daemon can end it, or tell that the machine went too."""
        with self.database.transaction():
            self.database.execute("UPDATE jobs SET child = ? WHERE operation = ?", child, operation)

    def lose(self, operation: str, *, power_cut: bool = False) -> Job:
        """Puts a build whose daemon died back into its place in the queue, for another attempt. The third time the
        build fails instead.

        Args:
            power_cut: the machine went too, maybe with events that watchers saw.
        """
        with self.database.transaction():
            job = self.get(operation)
            losses = job.losses + 1
            self.database.execute("UPDATE jobs SET losses = ? WHERE id = ?", losses, job.id)
            sequence = job.state.last_sequence + (_LOST_SEQUENCES if power_cut else 0)
            self._save(job, msgspec.structs.replace(job.state, last_sequence=sequence))
            if losses >= MAX_LOSSES:
                return self.record(operation, Finished(Stage.FAILED, error=_given_up(losses)))
            job = self.requeue(operation, job.state.attempt + 1)
            text = f"The builder ended while it worked on this build ({losses} of {MAX_LOSSES} times at most)."
            return self.record(operation, Log("warning", text))

    def requeue(self, operation: str, attempt: int) -> Job:
        """Puts a running build back into its place in the queue."""
        with self.database.transaction():
            self.set_child(operation, "")
            return self.record(operation, Started(Stage.QUEUED, 0.0, attempt))

    def delete(self, operation: str) -> None:
        """Forgets a finished build (its engine stays); FailedPrecondition for one that is not finished."""
        job = self.get(operation)
        if not job.state.done:
            raise FailedPrecondition(
                f"{operation} is not done; cancel it or wait for it first.",
                reason="OPERATION_RUNNING",
                metadata={"operation": operation},
            )
        with self.database.transaction():
            self.database.execute("DELETE FROM jobs WHERE id = ?", job.id)

    def expire(self) -> None:
        """Forgets finished builds that are too old, and the oldest of too many."""
        oldest = self.clock() - self._history_seconds
        kept = "SELECT id FROM jobs WHERE ended IS NOT NULL ORDER BY ended DESC, id DESC LIMIT -1 OFFSET ?"
        with self.database.transaction(durable=False):
            self.database.execute("DELETE FROM jobs WHERE ended < ?", oldest)
            self.database.execute(f"DELETE FROM jobs WHERE id IN ({kept})", self._max_done)

    def _append(self, job: Job, event: Event) -> Job:
        """Writes the event behind the others. Now and then, samples that were superseded long ago go."""
        now = self.clock()
        state = apply(job.state, event, now)
        row = (job.id, state.last_sequence, now, msgspec.json.encode(event), isinstance(event, Sample))
        self.database.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", *row)
        if state.last_sequence % _THIN_EVERY == 0:
            old = "DELETE FROM events WHERE job = ? AND sequence <= ? AND sample"
            self.database.execute(old, job.id, state.last_sequence - self._max_samples)
        return self._save(job, state)

    def _save(self, job: Job, state: State) -> Job:
        self.database.execute(
            "UPDATE jobs SET stage = ?, state = ?, ended = ? WHERE id = ?",
            state.stage,
            msgspec.json.encode(state),
            state.end_time,
            job.id,
        )
        return msgspec.structs.replace(job, state=state)

    def _insert(self, **columns: object) -> None:
        query = f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({_marks(columns)})"
        self.database.execute(query, *columns.values())

    def _rows(self, where: str, *values: object) -> list[Job]:
        return [_job(row) for row in self.database.execute(f"SELECT {_COLUMNS} FROM jobs WHERE {where}", *values)]

    def _row(self, where: str, *values: object) -> Job | None:
        return next(iter(self._rows(f"{where} LIMIT 1", *values)), None)

    def _refuse_full_queue(self, same: str) -> None:
        waiting = [build.fingerprint for build in self.waiting()]
        distinct = len({each for each in waiting if each}) + waiting.count("")
        new = not same or same not in waiting
        if (new and distinct >= self._max_queued) or len(waiting) >= self._max_queued * IDENTICAL_FACTOR:
            raise ResourceExhausted(
                f"{len(waiting)} builds wait already, the most that this builder keeps; try again later.",
                reason="BUILD_QUEUE_FULL",
                metadata={"subject": "build queue", "limit": self._max_queued},
                retry_after=30.0,
            )


def _marks(values: Iterable[object]) -> str:
    return ", ".join("?" for _ in values)


def _job(row: tuple[Any, ...]) -> Job:
    number, operation, request, spec, state, child, losses, priority, same, estimate = row
    return Job(
        id=number,
        operation=operation,
        request=request,
        spec=_SPEC.decode(spec),
        state=_STATE.decode(state),
        child=child,
        losses=losses,
        priority=priority,
        fingerprint=same,
        estimate=_ESTIMATE.decode(estimate),
    )


def _given_up(losses: int) -> ErrorEvent:
    message = (
        f"The builder ended {losses} times while it worked on this build, which is given up; "
        "look into the builder's log, then ask for the build again."
    )
    return ErrorEvent(13, "BUILD_LOST", message, {"losses": str(losses)})
