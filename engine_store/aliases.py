"""Aliases: movable names for versions, kept as numbered records. The highest record counts; its number is the etag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine_store.disk import Disk, store_errors
from engine_store.layout import Layout
from engine_store.names import check_id, is_id
from engine_store.records import Numbered, Records
from enginehouse.errors import Aborted, InvalidArgument, NotFound

LATEST = "latest"


class AliasRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where the alias points from `time` (seconds since the epoch) on; version 0: it is deleted."""

    version: int
    time: float


class Alias(NamedTuple):
    """An alias as it stands. `etag` changes with every change; `update_time` is seconds since the epoch."""

    engine: str
    alias: str
    version: int
    etag: str
    update_time: float


class Change(NamedTuple):
    """An alias as it stands after a change, and the version that it named before; 0: none."""

    alias: Alias
    before: int


class Aliases:
    """The aliases of one store. The caller checks that versions exist."""

    def __init__(self, layout: Layout, disk: Disk, clock: Callable[[], float]) -> None:
        self._layout, self._disk, self._clock = layout, disk, clock

    def get(self, engine: str, alias: str) -> Alias:
        """The alias; NotFound when it was never set or is deleted."""
        found = self._as_alias(engine, alias, self._records(engine, alias).latest())
        if found is None:
            raise NotFound(
                f"Engine `{engine}` has no alias `{alias}`; list its aliases to see what there is.",
                reason="ALIAS_NOT_FOUND",
                metadata={"engine": engine, "alias": alias},
            )
        return found

    def list(self, engine: str) -> list[Alias]:
        """All aliases of the engine, by name."""
        names = sorted(_names(self._layout.aliases(engine)))
        found = (self._as_alias(engine, name, self._records(engine, name).latest()) for name in names)
        return [alias for alias in found if alias is not None]

    def put(self, engine: str, alias: str, version: int, etag: str | None) -> Change:
        """Writes the next record (version 0 deletes). With an etag, only if the alias is still as it was read."""
        records = self._records(engine, alias)
        while True:
            with store_errors():
                last = records.latest()
            current = str(last.number) if last is not None and last.value.version else "0"
            if etag is not None and etag != current:
                raise Aborted(
                    f"Alias `{alias}` changed meanwhile (etag {current}, not {etag[:40]}); read it and decide again.",
                    reason="ETAG_MISMATCH",
                    metadata={"alias": alias, "etag": etag[:40], "current": current},
                )
            number = last.number + 1 if last else 1
            with store_errors():
                if records.append(number, record := AliasRecord(version=version, time=self._clock())):
                    done = Alias(engine, alias, version, str(number), record.time)
                    return Change(done, last.value.version if last else 0)

    def _records(self, engine: str, alias: str) -> Records[AliasRecord]:
        if alias == LATEST:
            raise InvalidArgument(
                "`latest` always means the newest version; choose another alias.",
                reason="RESERVED_ALIAS",
                metadata={"field": "alias"},
            )
        path = self._layout.aliases(engine) / check_id(alias, "alias")
        return Records(path, self._layout.staging, AliasRecord, self._disk, "alias")

    @staticmethod
    def _as_alias(engine: str, alias: str, last: Numbered[AliasRecord] | None) -> Alias | None:
        if last is None or last.value.version == 0:
            return None
        return Alias(engine, alias, last.value.version, str(last.number), last.value.time)


def _names(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir() if is_id(entry.name)]
    except FileNotFoundError:
        return []
