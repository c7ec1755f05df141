"""Clearing up after writers that died: what they had decided is completed, what they had not is removed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine_store.disk import Disk
from engine_store.layout import MANIFEST, Layout
from engine_store.owner import is_token, owner_alive
from engine_store.publish import KeyRecord, Publisher

FOREIGN_STAGING_SECONDS = 24 * 3600.0
"""Staging of another machine counts as dead when it was not written for this long."""


class Recovered(NamedTuple):
    """How many staged versions were completed, and how many staging entries removed."""

    completed: int
    removed: int


class _Sealed(msgspec.Struct):
    """What recovery needs of a staged manifest."""

    name: str
    build_key: str
    version: int


class Recovery:
    """The clearing up of one store."""

    def __init__(self, layout: Layout, disk: Disk, publisher: Publisher) -> None:
        self._layout, self._disk, self._publisher = layout, disk, publisher

    def recover(self, now: float) -> Recovered:
        """See `EngineStore.recover`."""
        completed = removed = 0
        for entry in self._dead_staging(now):
            if (sealed := _sealed(entry)) and (record := self._decided(sealed, entry.name)):
                completed += self._publisher.finish(sealed.name, record)
            else:
                self._disk.remove_tree(entry)
                removed += 1
        return Recovered(completed, removed)

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


def _sealed(entry: Path) -> _Sealed | None:
    """The staged manifest; None when the writer had not come so far (the file may be cut short by the crash)."""
    try:
        return msgspec.json.decode((entry / MANIFEST).read_bytes(), type=_Sealed)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None
