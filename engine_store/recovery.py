"""Clearing up after writers that died: what they had decided is completed, what they had not is removed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine_store.deletion import Deleter
from engine_store.disk import Disk
from engine_store.layout import MANIFEST, Layout
from engine_store.leases import clear_leases
from engine_store.manifest import UNREADABLE
from engine_store.names import VersionRef
from engine_store.owner import owner_alive, same_owner
from engine_store.publish import KeyRecord, Publisher
from engine_store.records import numbers_in
from enginehouse.errors import DataLoss

FOREIGN_SECONDS = 24 * 3600.0
"""What a process of another machine or boot wrote counts as dead when it was not changed for this long."""


class Recovered(NamedTuple):
    """How many staged versions were completed, and how many staging entries and claims removed."""

    completed: int
    removed: int
    claims: int


class _Sealed(msgspec.Struct):
    """What recovery needs of a staged manifest."""

    name: str
    build_key: str


class _Judge(NamedTuple):
    """Tells which processes are dead, at the time `now`. `gone`: tokens of some that the caller knows to be."""

    now: float
    gone: Collection[str]

    def dead(self, token: str, path: Path) -> bool:
        """Whether the process that this token names is dead. For one that nobody here knows, `path` tells by its
        age."""
        if any(same_owner(token, gone) for gone in self.gone):
            return True
        alive = owner_alive(token)
        return _newest(path) + FOREIGN_SECONDS <= self.now if alive is None else not alive


class Recovery:
    """The clearing up of one store."""

    def __init__(self, layout: Layout, disk: Disk, publisher: Publisher, deleter: Deleter) -> None:
        self._layout, self._disk, self._publisher, self._deleter = layout, disk, publisher, deleter

    def recover(self, now: float, gone: Collection[str]) -> Recovered:
        """See `EngineStore.recover`. What a damaged record may be about is left as it is."""
        completed = removed = claims = 0
        judge = _Judge(now, gone)
        for entry in self._dead_staging(judge):
            with contextlib.suppress(DataLoss):
                decided = self._decided(entry)
                completed += decided is not None and self._publisher.finish(*decided)
                removed += decided is None
                self._disk.remove(entry, "recover.staging.remove")  # after a power cut it may have both names
        for engine in self._layout.engine_names():
            with contextlib.suppress(DataLoss):
                claims += self._clear_claims(engine, judge)
                self._settle_deletions(engine, judge)
        clear_leases(self._layout, self._disk, now, "recover.lease.remove")
        return Recovered(completed, removed, claims)

    def _dead_staging(self, judge: _Judge) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError):
            for entry in self._layout.staging.iterdir():
                if judge.dead(entry.name, entry):
                    yield entry

    def _decided(self, entry: Path) -> tuple[str, str, KeyRecord] | None:
        """The engine, the build key and the record that names this staging entry."""
        if (sealed := _sealed(entry)) is None:
            return None
        record = self._publisher.decided(sealed.name, sealed.build_key, entry.name)
        return (sealed.name, sealed.build_key, record) if record else None

    def _clear_claims(self, engine: str, judge: _Judge) -> int:
        return self._publisher.claims.clear(
            engine,
            dead=judge.dead,
            named=lambda: self._publisher.named(engine),
            time=judge.now,
        )

    def _settle_deletions(self, engine: str, judge: _Judge) -> None:
        for number in numbers_in(self._layout.tombstones(engine)) & numbers_in(self._layout.versions(engine)):
            version = VersionRef(engine, number)
            dead = partial(judge.dead, path=self._layout.tombstone(*version))
            self._deleter.settle(version, dead, "recover")


def _newest(path: Path) -> float:
    """The newest mtime in a tree, so that a long build that writes one file counts as alive."""
    times = []
    for entry in (path, *path.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            times.append(entry.lstat().st_mtime)
    return max(times, default=0.0)


def _sealed(entry: Path) -> _Sealed | None:
    """The staged manifest; None when the writer had not come so far (the file may be cut short by the crash)."""
    try:
        return msgspec.json.decode((entry / MANIFEST).read_bytes(), type=_Sealed)
    except (FileNotFoundError, NotADirectoryError, *UNREADABLE):
        return None
