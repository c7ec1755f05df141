"""The queue and history of builds in SQLite (WAL, on local disk): what was accepted survives the daemon."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from builder_service import events
from builder_service.events import FINAL, NEXT_STAGES, Event, Finished, Log, Memory, Progress, Started, Stored
from builder_service.job import BuildJob, ErrorEvent, Stage
from enginehouse.errors import AlreadyExists, FailedPrecondition, NotFound, ResourceExhausted

MAX_LOSSES = 3
"""A build whose daemon died this often while it ran is given up: it may be the cause."""

_NO_SPACE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""A full file system shows as either, by where SQLite meets it."""
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    operation TEXT NOT NULL UNIQUE,
    request_id TEXT UNIQUE,
    request BLOB NOT NULL,
    spec BLOB NOT NULL,
    stage TEXT NOT NULL,
    state BLOB NOT NULL,
    child TEXT NOT NULL DEFAULT '',
    losses INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS jobs_by_stage ON jobs (stage, id);
CREATE TABLE IF NOT EXISTS events (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    sequence INTEGER NOT NULL,
    time REAL NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (job, sequence)
) WITHOUT ROWID;
"""
_COLUMNS = "id, operation, request, spec, state, child, losses"
_EVENT = msgspec.json.Decoder(Event)


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Where a build is. Times are seconds since the epoch, memory is in bytes."""

    stage: Stage = Stage.QUEUED
    stage_time: float
    create_time: float
    end_time: float | None = None
    fraction: float = 0.0
    attempt: int = 1
    message: str = "Waiting for its turn."
    memory_peak: int = 0
    build_key: str = ""
    version: int = 0
    reused: bool = False
    error: ErrorEvent | None = None
    last_sequence: int = 0

    @property
    def done(self) -> bool:
        return self.stage in FINAL


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A build as stored. `operation` is its name ("operations/..."), `request` the caller's message as bytes, `child`
    the owner token of the process that runs it (empty: none)."""

    id: int
    operation: str
    request: bytes
    spec: BuildJob
    state: State
    child: str
    losses: int


def apply(state: State, event: Event, now: float) -> State:
    """The state after an event. Pure; a stage that may not follow is a broken invariant."""
    changes: dict[str, Any] = {"last_sequence": state.last_sequence + 1}
    match event:
        case Started(stage=stage, fraction=fraction, attempt=attempt):
            assert stage in NEXT_STAGES[state.stage], f"{state.stage} -> {stage}"
            changes |= {"stage": stage, "stage_time": now, "fraction": fraction, "attempt": attempt, "message": ""}
        case Progress(done=done, total=total, unit=unit, fraction=fraction):
            changes |= {"fraction": max(fraction, state.fraction), "message": f"{done} of {total} {unit}"}
        case Log(text=text):
            changes |= {"message": text}
        case Memory(peak=peak):
            changes |= {"memory_peak": max(peak, state.memory_peak)}
        case Finished(stage=stage, version=version, reused=reused, error=error):
            assert stage in FINAL, stage
            assert stage in NEXT_STAGES[state.stage], f"{state.stage} -> {stage}"
            fraction = 1.0 if stage is Stage.SUCCEEDED else state.fraction
            changes |= {"stage": stage, "stage_time": now, "end_time": now, "fraction": fraction, "error": error}
            changes |= {"version": version, "reused": reused, "message": error.message if error else ""}
    return msgspec.structs.replace(state, **changes)


class JobStore:
    """All builds of one daemon. One thread uses it; each call is one transaction, on disk when it returns.

    Args:
        path: the database, on local disk; made where it is missing.
        max_queued: builds that may wait; one more is ResourceExhausted.
        max_done: finished builds that are kept, the newest.
        max_events: events that are kept of each build, the newest.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_queued: int = 100,
        max_done: int = 1000,
        max_events: int = 10_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._max_queued, self._max_done, self._max_events = max_queued, max_done, max_events
        self._clock = clock
        self._db = _open(path)

    def close(self) -> None:
        self._db.close()

    def submit(self, spec: BuildJob, request: bytes, request_id: str = "") -> Job:
        """Queues a build. The same request_id with the same request answers with the build it made.

        Raises: AlreadyExists for a used request_id with another request; ResourceExhausted when the queue is full.
        """
        with self._transaction():
            if request_id and (known := self._row("request_id = ?", request_id)):
                if known.request != request:
                    raise AlreadyExists(
                        "This `request_id` was used for another request; make a new one.",
                        reason="REQUEST_ID_REUSED",
                        metadata={"field": "request_id", "operation": known.operation},
                    )
                return known
            self._refuse_full_queue()
            operation, now = f"operations/{uuid.uuid4().hex}", self._clock()
            self._db.execute(
                "INSERT INTO jobs (operation, request_id, request, spec, stage, state) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    operation,
                    request_id or None,
                    request,
                    msgspec.json.encode(spec),
                    Stage.QUEUED,
                    msgspec.json.encode(State(stage_time=now, create_time=now)),
                ),
            )
            return self.get(operation)

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

    def all(self) -> list[Job]:
        """Every build that is kept, the newest first."""
        return self._rows("1 ORDER BY id DESC")

    def next_queued(self) -> Job | None:
        """The build whose turn it is; None when none waits."""
        return self._row("stage = ? ORDER BY id", Stage.QUEUED)

    def running(self) -> list[Job]:
        """The builds that are neither waiting nor done."""
        marks = ", ".join("?" * len(events.RUNNING))
        return self._rows(f"stage IN ({marks}) ORDER BY id", *events.RUNNING)

    def queue_position(self, job: Job) -> int:
        """How many builds come before this one; 0 when it does not wait."""
        if job.state.stage is not Stage.QUEUED:
            return 0
        done = ", ".join("?" * len(FINAL))
        query = f"SELECT count(*) FROM jobs WHERE id < ? AND stage NOT IN ({done})"
        return int(self._db.execute(query, (job.id, *FINAL)).fetchone()[0])

    def record(self, operation: str, event: Event) -> Job:
        """Adds an event and what follows from it for the build."""
        with self._transaction():
            job, now = self.get(operation), self._clock()
            state = apply(job.state, event, now)
            self._db.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?)",
                (job.id, state.last_sequence, now, msgspec.json.encode(event)),
            )
            self._save(job.id, state)
            oldest = state.last_sequence - self._max_events
            self._db.execute("DELETE FROM events WHERE job = ? AND sequence <= ?", (job.id, oldest))
            if state.done:
                self._trim()
            return msgspec.structs.replace(job, state=state)

    def set_build_key(self, operation: str, build_key: str) -> None:
        """Notes the key once it is known. No event: it is read with the operation."""
        with self._transaction():
            job = self.get(operation)
            self._save(job.id, msgspec.structs.replace(job.state, build_key=build_key))

    def set_child(self, operation: str, child: str) -> None:
        """Notes which process runs the build, so that a later daemon can end it."""
        with self._transaction():
            self._db.execute("UPDATE jobs SET child = ? WHERE operation = ?", (child, operation))

    def requeue(self, operation: str, *, lost: bool) -> Job:
        """Puts a running build back into its place in the queue, for another attempt.

        Args:
            lost: the daemon died meanwhile. The third time the build fails instead.
        """
        with self._transaction():
            job = self.get(operation)
            losses = job.losses + lost
            self._db.execute("UPDATE jobs SET losses = ?, child = '' WHERE id = ?", (losses, job.id))
            if losses >= MAX_LOSSES:
                return self.record(operation, Finished(Stage.FAILED, error=_given_up(losses)))
            return self.record(operation, Started(Stage.QUEUED, 0.0, job.state.attempt + 1))

    def events_after(self, operation: str, sequence: int, limit: int = 500) -> list[Stored]:
        """The kept events after `sequence`, in order, at most `limit`."""
        query = "SELECT sequence, time, payload FROM events WHERE job = ? AND sequence > ? ORDER BY sequence LIMIT ?"
        rows = self._db.execute(query, (self.get(operation).id, sequence, limit))
        return [Stored(number, when, _EVENT.decode(payload)) for number, when, payload in rows]

    def delete(self, operation: str) -> None:
        """Forgets a finished build (its engine stays); FailedPrecondition for one that is not finished."""
        job = self.get(operation)
        if not job.state.done:
            raise FailedPrecondition(
                f"{operation} is not done; cancel it or wait for it first.",
                reason="OPERATION_RUNNING",
                metadata={"operation": operation},
            )
        with self._transaction():
            self._db.execute("DELETE FROM jobs WHERE id = ?", (job.id,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One atomic step; joins the transaction that is open already. ResourceExhausted when the disk is full."""
        if self._db.in_transaction:
            yield
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:  # SQLite ends it itself after some failures, a COMMIT's among them
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in _NO_SPACE:
                raise ResourceExhausted(
                    "The disk with the builder's queue is full; free some space and try again.",
                    reason="DISK_FULL",
                    metadata={"subject": "build queue"},
                    retry_after=30.0,
                ) from error
            raise

    def _save(self, job: int, state: State) -> None:
        self._db.execute(
            "UPDATE jobs SET stage = ?, state = ? WHERE id = ?", (state.stage, msgspec.json.encode(state), job)
        )

    def _rows(self, where: str, *values: object) -> list[Job]:
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE {where}", values)
        return [_job(row) for row in rows]

    def _row(self, where: str, *values: object) -> Job | None:
        return next(iter(self._rows(f"{where} LIMIT 1", *values)), None)

    def _trim(self) -> None:
        marks = ", ".join("?" * len(FINAL))
        kept = f"SELECT id FROM jobs WHERE stage IN ({marks}) ORDER BY id DESC LIMIT -1 OFFSET ?"
        self._db.execute(f"DELETE FROM jobs WHERE id IN ({kept})", (*FINAL, self._max_done))

    def _refuse_full_queue(self) -> None:
        waiting = self._db.execute("SELECT count(*) FROM jobs WHERE stage = ?", (Stage.QUEUED,)).fetchone()[0]
        if waiting >= self._max_queued:
            raise ResourceExhausted(
                f"{waiting} builds wait already, the most that this builder keeps; try again later.",
                reason="BUILD_QUEUE_FULL",
                metadata={"subject": "build queue", "limit": self._max_queued},
                retry_after=30.0,
            )


def _open(path: Path) -> sqlite3.Connection:
    """The database with its tables; FailedPrecondition for a file that is damaged or of a later version."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "busy_timeout = 5000"):
            db.execute(f"PRAGMA {pragma}")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"format {version}, this builder reads {_VERSION}")
        db.executescript(f"{_SCHEMA} PRAGMA user_version = {_VERSION};")
    except sqlite3.DatabaseError as error:
        db.close()
        raise FailedPrecondition(
            f"The build queue {path} cannot be used ({error}); move it away to begin with an empty one. "
            "Engines are not affected.",
            reason="QUEUE_UNUSABLE",
            metadata={"path": path},
        ) from error
    return db


def _job(row: tuple[Any, ...]) -> Job:
    number, operation, request, spec, state, child, losses = row
    return Job(
        id=number,
        operation=operation,
        request=request,
        spec=msgspec.json.decode(spec, type=BuildJob),
        state=msgspec.json.decode(state, type=State),
        child=child,
        losses=losses,
    )


def _given_up(losses: int) -> ErrorEvent:
    message = (
        f"The builder ended {losses} times while it worked on this build, which is given up; "
        "look into the builder's log, then ask for the build again."
    )
    return ErrorEvent(13, "BUILD_LOST", message, {"losses": str(losses)})
