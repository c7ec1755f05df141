"""Deleting a version: a tombstone hides it at once; `Collector` removes its files later.

An alias may be set, or a lease taken, while a version is deleted. Each side writes first and looks then: the deleter
its tombstone, the other its record or lease. So at least one of the two sees the other and withdraws.
"""

from __future__ import annotations

from collections.abc import Callable

from engine_store.aliases import Aliases
from engine_store.disk import Disk
from engine_store.layout import Layout
from engine_store.leases import leased
from engine_store.names import VersionRef
from engine_store.tombstones import Tombstones
from enginehouse.errors import FailedPrecondition


class Deleter:
    """The hiding of versions in one store."""

    def __init__(self, layout: Layout, disk: Disk, aliases: Aliases, clock: Callable[[], float]) -> None:
        self._layout, self._aliases, self._clock = layout, aliases, clock
        self._tombstones = Tombstones(layout, disk)

    def delete(self, version: VersionRef) -> bool:
        """Hides the version: False when somebody else did. FailedPrecondition while an alias names it."""
        return self._hide(version, self._refuse_aliased)

    def evict(self, version: VersionRef) -> bool:
        """Hides the version unless an alias or a reader has it now. Whether it was hidden here."""
        try:
            return self._hide(version, self._refuse_used)
        except FailedPrecondition:
            return False

    def settle(self, version: VersionRef, dead: Callable[[str], bool], step: str) -> bool:
        """Ends what a dead deleter began: shows the version again if an alias names it (the step `.withdraw`), else
        confirms its tombstone (`.confirm`). Whether the version is still hidden.

        Args:
            dead: whether the deleter with this token is dead.
        """
        deleter = self._tombstones.unconfirmed(version)
        if deleter is None or not dead(deleter):
            return True
        if self._names(version):
            self._tombstones.remove(version, f"{step}.withdraw")
            return False
        self._tombstones.confirm(version, step)
        return True

    def _hide(self, version: VersionRef, refuse: Callable[[VersionRef], None]) -> bool:
        refuse(version)
        if not self._tombstones.make(version, self._clock(), "delete"):
            return False
        try:
            refuse(version)  # an alias or a lease came between the first look and the tombstone
        except FailedPrecondition:
            self._tombstones.remove(version, "delete.withdraw")
            raise
        self._tombstones.confirm(version, "delete")
        return True

    def _names(self, version: VersionRef) -> list[str]:
        """The aliases that name the version."""
        return [alias.alias for alias in self._aliases.list(version.engine) if alias.version == version.version]

    def _refuse_aliased(self, version: VersionRef) -> None:
        if names := self._names(version):
            raise FailedPrecondition(
                f"Version {version.version} of `{version.engine}` has the alias {', '.join(names)}; "
                "move or delete it first.",
                reason="VERSION_ALIASED",
                metadata={**version._asdict(), "aliases": ",".join(names)},
            )

    def _refuse_used(self, version: VersionRef) -> None:
        self._refuse_aliased(version)
        if version in leased(self._layout, self._clock()):
            raise FailedPrecondition(
                f"A reader holds version {version.version} of `{version.engine}`.",
                reason="VERSION_LEASED",
                metadata=version._asdict(),
            )
