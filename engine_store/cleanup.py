"""What a builder daemon clears up: staging of dead writers, deleted versions that nobody reads, unused blobs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine_store.blobs import Blobs
from engine_store.disk import Disk
from engine_store.layout import MANIFEST, Layout
from engine_store.leases import LEASE_SECONDS, leased
from engine_store.owner import is_token, new_token, owner_alive
from engine_store.publish import KeyRecord, Publisher

FOREIGN_STAGING_SECONDS = 24 * 3600.0
"""Staging of another machine counts as dead when it was not written for this long."""


class Recovered(NamedTuple):
    """How many staged versions were completed, and how many staging entries removed."""

    completed: int
    removed: int


class Collected(NamedTuple):
    """How many deleted versions and unused blobs were removed."""

    versions: int
    blobs: int


class _Sealed(msgspec.Struct):
    """What recovery needs of a staged manifest."""

    name: str
    build_key: str
    version: int


class Cleaner:
    """The clearing half of a store."""

    def __init__(self, layout: Layout, disk: Disk, publisher: Publisher) -> None:
        self._layout, self._disk, self._publisher = layout, disk, publisher

    def recover(self, now: float) -> Recovered:
        """Completes what dead writers had decided, removes what they had not."""
        completed = removed = 0
        for entry in self._dead_staging(now):
            if (sealed := _sealed(entry)) and (record := self._decided(sealed, entry.name)):
                completed += self._publisher.finish(sealed.name, record)
            else:
                self._disk.remove_tree(entry)
                removed += 1
        return Recovered(completed, removed)

    def collect(self, now: float) -> Collected:
        """Removes versions whose tombstone is two lease times old and that no reader holds, then unused blobs."""
        removed = 0
        for tombstone in self._layout.engines.glob("*/tombstones/*"):
            engine, version = tombstone.parent.parent.name, int(tombstone.name)
            old = tombstone.stat().st_mtime + 2 * LEASE_SECONDS <= now
            if old and not leased(self._layout.leases, engine, version, now):
                removed += self._remove_version(engine, version)
        return Collected(removed, Blobs(self._layout, self._disk).collect())

    def _dead_staging(self, now: float) -> Iterator[Path]:
        with contextlib.suppress(FileNotFoundError):
            for entry in self._layout.staging.iterdir():
                alive = owner_alive(entry.name)
                if alive is None and is_token(entry.name):
                    alive = entry.lstat().st_mtime + FOREIGN_STAGING_SECONDS > now
                if alive is False:
                    yield entry

    def _decided(self, sealed: _Sealed, token: str) -> KeyRecord | None:
        for record in self._publisher.keys(sealed.name, sealed.build_key).newest_first():
            if record.value.token == token:
                return record.value
        return None

    def _remove_version(self, engine: str, version: int) -> bool:
        """Moves the version aside first, so that no reader meets a half of it. The tombstone stays: the number is
        spent."""
        aside = self._layout.staging / new_token()
        try:
            self._disk.rename(self._layout.version(engine, version), aside)
        except FileNotFoundError:
            return False
        self._disk.remove_tree(aside)
        return True


def _sealed(entry: Path) -> _Sealed | None:
    """The staged manifest; None when the writer had not come so far (the file may be cut short by the crash)."""
    try:
        return msgspec.json.decode((entry / MANIFEST).read_bytes(), type=_Sealed)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None
