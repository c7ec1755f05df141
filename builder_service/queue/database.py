"""The builder's SQLite file: its tables, and transactions that say when the disk is full."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enginehouse.errors import FailedPrecondition, ResourceExhausted

_NO_SPACE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""A full file system shows as either, by where SQLite meets it."""
_VERSION = 2
_TABLES = (
    """
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    operation TEXT NOT NULL UNIQUE,
    request_id TEXT UNIQUE,
    request BLOB NOT NULL,
    spec BLOB NOT NULL,
    stage TEXT NOT NULL,
    state BLOB NOT NULL,
    child TEXT NOT NULL DEFAULT '',
    losses INTEGER NOT NULL DEFAULT 0,
    priority REAL NOT NULL DEFAULT 0.5,
    turn REAL NOT NULL DEFAULT 0,
    fingerprint TEXT NOT NULL DEFAULT '',
    estimate BLOB NOT NULL DEFAULT 'null',
    memory INTEGER,
    ended REAL
)""",
    """
CREATE TABLE IF NOT EXISTS events (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    sequence INTEGER NOT NULL,
    time REAL NOT NULL,
    payload BLOB NOT NULL,
    sample INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job, sequence)
) WITHOUT ROWID""",
)
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS jobs_in_turn ON jobs (stage, turn, id)",
    "CREATE INDEX IF NOT EXISTS jobs_ended ON jobs (ended) WHERE ended IS NOT NULL",
)


class Database:
    """One connection, for one thread. Each transaction is on disk when it ends, unless it was begun as not durable."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.connection = _open(path)
        self._durable = True

    def close(self) -> None:
        self.connection.close()

    def execute(self, query: str, *values: object) -> sqlite3.Cursor:
        return self.connection.execute(query, values)

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[None]:
        """One atomic step; joins the transaction that is open already. ResourceExhausted when the disk is full.

        Args:
            durable: False: outlives this process, and a power cut only once a later durable one has ended.
        """
        if self.connection.in_transaction:
            yield
            return
        try:
            self._set_durable(durable)
            self.execute("BEGIN IMMEDIATE")
            yield
            self.execute("COMMIT")
        except BaseException as error:
            if self.connection.in_transaction:  # SQLite ends it itself after some failures, a COMMIT's among them
                self.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in _NO_SPACE:
                raise ResourceExhausted(
                    "The disk with the builder's queue is full; free some space and try again.",
                    reason="DISK_FULL",
                    metadata={"subject": "build queue"},
                    retry_after=30.0,
                ) from error
            raise

    def _set_durable(self, durable: bool) -> None:
        if durable is not self._durable:
            self.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable


def _open(path: Path) -> sqlite3.Connection:
    """The database with its tables; FailedPrecondition for a file that is damaged or of another version."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "busy_timeout = 5000"):
            db.execute(f"PRAGMA {pragma}")
        db.execute("BEGIN IMMEDIATE")
        _prepare(db)
        db.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        db.close()
        raise FailedPrecondition(
            f"The build queue {path} cannot be used ({error}); move it away to begin with an empty one. "
            "Engines are not affected.",
            reason="QUEUE_UNUSABLE",
            metadata={"path": path},
        ) from error
    return db


def _prepare(db: sqlite3.Connection) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, _VERSION):
        raise sqlite3.DatabaseError(f"format {version}, this builder reads {_VERSION}")
    for table in _TABLES:
        db.execute(table)
    for index in _INDEXES:
        db.execute(index)
    db.execute(f"PRAGMA user_version = {_VERSION}")
