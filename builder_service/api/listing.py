"""Engines and versions in pages. Names are read first; manifests of the page's own versions alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from builder_service.api import convert_proto
from builder_service.api.convert_proto import EngineView
from engine_store import Alias, EngineStore, Manifest
from enginehouse._gen.enginehouse.builder.v1 import engine_pb2
from enginehouse.errors import DataLoss, FailedPrecondition, NotFound
from service_kit.pagination import Page, Paged, bad_token, encode, paginate


class _Entry(NamedTuple):
    """A version's place in a listing."""

    engine: str
    number: int
    deleted: bool


class Listing:
    """Reads one store. Blocking: call it in a thread."""

    def __init__(self, store: EngineStore) -> None:
        self._store = store

    def engine(self, engine: str) -> engine_pb2.Engine:
        """One engine; NotFound when it has no version."""
        numbers = self._store.version_numbers(engine)
        if not numbers:
            self._store.resolve(engine)  # says that there is no such engine
        ends = [self._made(engine, number) for number in (numbers[:1] + numbers[-1:])]
        times = [time for time in ends if time is not None]
        return convert_proto.engine(EngineView(engine, numbers, times, self._store.list_aliases(engine)))

    def engines(self, page: Page, scope: str) -> Paged[engine_pb2.Engine]:
        """A page of engines by name."""
        ids, token = paginate(self._store.list_engines(), str, page, scope)
        found = []
        for engine in ids:
            with contextlib.suppress(NotFound):  # its last version was deleted since the list was read
                found.append(self.engine(engine))
        return Paged(found, token)

    def versions(self, engine: str | None, deleted: bool, page: Page, scope: str) -> Paged[engine_pb2.EngineVersion]:
        """A page of one engine's versions, or of all engines': by engine, the newest first.

        Args:
            deleted: whether deleted versions whose files are still there are listed too.

        Raises: NotFound for an engine without any.
        """
        engines = self._store.list_engines() if engine is None else [engine]
        entries = list(islice(self._entries(engines, deleted, _after(page)), page.size + 1))
        if engine is not None and not entries and page.after is None:
            self._store.resolve(engine)  # says that there is no such engine
        shown = entries[: page.size]
        token = encode(f"{shown[-1].engine}/{shown[-1].number}", scope) if len(entries) > page.size else ""
        aliases = {name: self._store.list_aliases(name) for name in {entry.engine for entry in shown}}
        found = (self._read(entry, aliases[entry.engine]) for entry in shown)
        return Paged([version for version in found if version is not None], token)

    def version(self, manifest: Manifest) -> engine_pb2.EngineVersion:
        """A version with its aliases and its last use."""
        return self._message(manifest, self._store.list_aliases(manifest.name))

    def _entries(self, engines: list[str], deleted: bool, after: tuple[str, int] | None) -> Iterator[_Entry]:
        for engine in engines:
            if after is not None and engine < after[0]:
                continue
            gone = set(self._store.deleted_numbers(engine)) if deleted else set()
            for number in sorted({*self._store.version_numbers(engine), *gone}, reverse=True):
                if after is None or engine != after[0] or number < after[1]:
                    yield _Entry(engine, number, number in gone)

    def _read(self, entry: _Entry, aliases: list[Alias]) -> engine_pb2.EngineVersion | None:
        """The version; None when it went meanwhile. One that cannot be read is listed by its name and the reason: it
        must not hide the others."""
        try:
            if not entry.deleted:
                return self._message(self._store.get(entry.engine, entry.number), aliases)
            found = self._store.get_deleted(entry.engine, entry.number)
            return convert_proto.deleted_version(*found) if found else None
        except NotFound:
            return None
        except (DataLoss, FailedPrecondition) as error:
            return convert_proto.unreadable_version(entry.engine, entry.number, error)

    def _message(self, manifest: Manifest, aliases: list[Alias]) -> engine_pb2.EngineVersion:
        used = self._store.last_use(manifest.name, manifest.version)
        return convert_proto.engine_version(manifest, aliases, last_use=used)

    def _made(self, engine: str, number: int) -> float | None:
        """When a version was made; None for one that went meanwhile or cannot be read."""
        try:
            return convert_proto.seconds(self._store.get(engine, number).create_time)
        except (NotFound, DataLoss, FailedPrecondition):
            return None


def _after(page: Page) -> tuple[str, int] | None:
    """The engine and number of the last version that the caller has."""
    if page.after is None:
        return None
    engine, _, number = str(page.after).partition("/")
    if not (number.isascii() and number.isdigit()):
        raise bad_token()
    return engine, int(number)
