"""Claims: who took a version's number. `claims/<n>` is made by mkdir, which is exclusive everywhere; linking the token
of the writer's process to `claims/<n>/owner` makes it that writer's.

A number is used by one writer at most, ever:
- it counts only from its owner on, so an empty claim can be removed at any time: rmdir and link exclude each other;
- the claim of a dead owner is removed only after a tombstone spent its number; a writer looks for the tombstone after
  its link, recovery for the owner after its tombstone, so that at least one of two sees the other and steps back;
- a living writer that gives up removes its own claim: nothing names the number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine_store.disk import Disk
from engine_store.layout import Layout
from engine_store.names import VersionRef
from engine_store.owner import new_token
from engine_store.records import numbers_in
from engine_store.tombstones import Tombstones


class Claims:
    """The claims of one store."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        self._layout, self._disk, self._tombstones = layout, disk, Tombstones(layout, disk)

    def take(self, engine: str) -> int:
        """A number for a new version, above all others; no other writer gets it, and it is durable."""
        for folder in (self._layout.claims(engine), self._layout.staging):
            self._disk.make_dirs(folder, "publish.claim.folder")
        draft = self._layout.staging / new_token()
        try:
            self._disk.write(draft, draft.name.encode(), "publish.claim.draft")
            number = max(self._spent(engine), default=0) + 1
            while not self._try(VersionRef(engine, number), draft):
                number += 1
        finally:
            self._disk.drop(draft, "publish.claim.draft.remove")
        return number

    def owner(self, version: VersionRef) -> str | None:
        """The token of the claim's owner; None while it has none."""
        try:
            return (self._layout.claim(*version) / "owner").read_text(errors="replace")
        except FileNotFoundError:
            return None

    def remove(self, version: VersionRef, step: str) -> None:
        """Removes a claim that its owner gave up, or whose number is spent: the steps `.owner.remove` and `.remove`."""
        claim = self._layout.claim(*version)
        self._disk.remove(claim / "owner", f"{step}.owner.remove")
        self._disk.remove_dir(claim, f"{step}.remove")

    def clear(self, engine: str, dead: Callable[[str, Path], bool], named: Callable[[], set[int]], time: float) -> int:
        """Removes claims without a version, of dead owners or of none; how many.

        Args:
            dead: whether the owner with this token, of the claim at this path, is dead.
            named: the numbers in the engine's key records; their versions were decided, and keep their claims.
            time: now, in seconds since the epoch.
        """
        removed, abandoned = 0, []
        for number in sorted(numbers_in(self._layout.claims(engine)) - numbers_in(self._layout.versions(engine))):
            version = VersionRef(engine, number)
            owner = self.owner(version)
            if owner is None:
                removed += self._disk.remove_dir(self._layout.claim(*version), "recover.claim.remove")
            elif dead(owner, self._layout.claim(*version)):
                abandoned.append((version, owner))
        decided = named() if abandoned else set()
        for version, owner in abandoned:
            spent = self._tombstones.there(version)  # of a version that its collector died removing
            removed += (spent or version.version not in decided) and self._spend(version, owner, time)
        return removed

    def _try(self, version: VersionRef, draft: Path) -> bool:
        claim = self._layout.claim(*version)
        try:
            self._disk.make_dir(claim, "publish.claim.mkdir")
            if not self._disk.link(draft, claim / "owner", "publish.claim.owner"):
                return False
        except (FileExistsError, FileNotFoundError):  # taken; or removed between the two, as it was empty
            return False
        if self._tombstones.there(version):  # recovery spent the number while we took it
            self.remove(version, "discard.claim")
            return False
        self._disk.sync_dir(claim, "publish.claim.owner.sync")
        self._disk.sync_dir(claim.parent, "publish.claim.sync")
        return True

    def _spend(self, version: VersionRef, owner: str, time: float) -> bool:
        """Ends the claim of a dead owner. False when a living writer has taken the number meanwhile."""
        made = self._tombstones.make(version, time, "recover.claim")
        if self.owner(version) not in (owner, None):
            if made:
                self._tombstones.remove(version, "recover.claim.withdraw")
            return False
        self.remove(version, "recover.claim")
        return True

    def _spent(self, engine: str) -> set[int]:
        paths = (self._layout.claims(engine), self._layout.versions(engine), self._layout.tombstones(engine))
        return set().union(*map(numbers_in, paths))
