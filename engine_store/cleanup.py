"""What a builder daemon clears up: deleted versions that nobody reads, versions above the quota, unused blobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from engine_store.aliases import Aliases
from engine_store.blobs import Blobs
from engine_store.claims import Claims
from engine_store.deletion import Deleter
from engine_store.disk import Disk
from engine_store.layout import Layout
from engine_store.leases import LEASE_SECONDS, clear_leases, last_uses, leased
from engine_store.names import VersionRef
from engine_store.owner import new_token
from engine_store.quota import Inventory, Usage, create_time, over_quota, plan
from engine_store.records import numbers_in
from enginehouse.errors import DataLoss


class Collected(NamedTuple):
    """What `collect` did, or would do. `removed`: versions whose files went; `evicted`: versions hidden now for the
    quota; `waiting`: hidden earlier, files still there; `blobs`: how many unused blobs went; `freed_bytes`: the bytes
    of all files that went; `usage`: what the store holds afterwards."""

    removed: tuple[VersionRef, ...]
    evicted: tuple[VersionRef, ...]
    waiting: tuple[VersionRef, ...]
    blobs: int
    freed_bytes: int
    usage: Usage


class Collector:
    """The removal of files from one store, and its quota in bytes (0: none)."""

    def __init__(
        self, layout: Layout, disk: Disk, aliases: Aliases, clock: Callable[[], float], quota_bytes: int
    ) -> None:
        self._layout, self._disk, self._aliases, self._clock = layout, disk, aliases, clock
        self._quota = quota_bytes
        self._deleter = Deleter(layout, disk, aliases, clock)
        self._blobs, self._claims = Blobs(layout, disk), Claims(layout, disk)

    def usage(self) -> Usage:
        """What the store holds."""
        return Usage(Inventory(self._layout).used_bytes, self._quota)

    def make_room(self, needed_bytes: int) -> list[VersionRef]:
        """Evicts until `needed_bytes` more fit; see `EngineStore.make_room`."""
        evicted: list[VersionRef] = []
        done = self._quota == 0
        while not done:
            inventory, hidden = Inventory(self._layout), self._hidden()
            used = inventory.used_bytes
            self._drop(inventory, hidden - leased(self._layout, self._clock()))
            chosen = plan(inventory, self._candidates(inventory.versions - hidden), self._quota - needed_bytes)
            if inventory.held_bytes > self._quota - needed_bytes:
                raise over_quota(Usage(used, self._quota), needed_bytes)
            gone = [version for version in chosen if self._deleter.evict(version)]
            evicted += gone
            done = len(gone) == len(chosen)  # else one was taken into use meanwhile: choose again
        return evicted

    def collect(self, validate_only: bool) -> Collected:
        """Removes what is due and evicts what the quota has no room for; see `EngineStore.collect`."""
        now, inventory, hidden = self._clock(), Inventory(self._layout), self._hidden()
        held, used = leased(self._layout, now), inventory.used_bytes
        due = sorted(version for version in hidden - held if self._due(version, now))
        self._drop(inventory, due)
        freed, blobs = used - inventory.held_bytes, inventory.unused_blobs
        self._drop(inventory, hidden - held)
        chosen = plan(inventory, self._candidates(inventory.versions - hidden), self._quota) if self._quota else []
        usage = Usage(used - freed, self._quota)
        if not validate_only:
            due = [version for version in due if self._remove(version)]
            chosen = [version for version in chosen if self._deleter.evict(version)]
            blobs = self._blobs.collect()
            clear_leases(self._layout, self._disk, now, "collect.lease.remove")
            usage = self.usage() if due or blobs else usage
        waiting = sorted(hidden.difference(due))
        return Collected(tuple(due), tuple(chosen), tuple(waiting), blobs, freed, usage)

    def _candidates(self, versions: set[VersionRef]) -> list[VersionRef]:
        """Those that no reader holds and no alias names, the least recently used first."""
        used = last_uses(self._layout)
        free = versions - self._aliased(versions) - leased(self._layout, self._clock())
        return sorted(free, key=lambda ref: (max(used.get(ref, 0.0), create_time(self._layout, ref)), ref))

    def _aliased(self, versions: set[VersionRef]) -> set[VersionRef]:
        """Those that an alias names. Where an engine's aliases cannot be read, each may: one damaged record must not
        stop the clearing of all others."""
        found = set()
        for engine in {version.engine for version in versions}:
            try:
                found |= {VersionRef(engine, alias.version) for alias in self._aliases.list(engine)}
            except DataLoss:
                found |= {version for version in versions if version.engine == engine}
        return found

    def _hidden(self) -> set[VersionRef]:
        """The deleted versions whose files are still there."""
        found = set()
        for engine in self._layout.engine_names():
            numbers = numbers_in(self._layout.tombstones(engine)) & numbers_in(self._layout.versions(engine))
            found |= {VersionRef(engine, number) for number in numbers}
        return found

    def _due(self, version: VersionRef, now: float) -> bool:
        """Whether its tombstone is two lease times old."""
        return _mtime(self._layout.tombstone(*version), now) + 2 * LEASE_SECONDS <= now

    def _remove(self, version: VersionRef) -> bool:
        """Moves the version aside first, so that no reader meets a half of it. Its tombstone hides it for ever, so
        nothing here needs to be durable."""
        if not self._deleter.settle(version, dead=lambda token: True, step="collect"):  # two lease times are enough
            return False
        aside = self._layout.staging / new_token()
        try:
            self._disk.rename(self._layout.version(*version), aside, "collect.aside")
        except FileNotFoundError:  # another collector took it
            return False
        self._disk.remove(aside, "collect.remove")
        self._claims.remove(version, "collect.claim")
        return True

    @staticmethod
    def _drop(inventory: Inventory, versions: Iterable[VersionRef]) -> None:
        for version in versions:
            inventory.drop(version)


def _mtime(path: Path, default: float) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return default
