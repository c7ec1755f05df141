"""Deleting a version: a tombstone hides it at once; `Collector` removes its files later.

An alias may be set, or a lease taken, while a version is deleted. Each side writes first and looks then: the deleter
its tombstone, the other its record or lease. So at least one of the two sees the other and withdraws.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from engine_store.aliases import Aliases
from engine_store.disk import Disk, store_errors
from engine_store.layout import Layout
from engine_store.leases import leased
from engine_store.names import VersionRef
from enginehouse.errors import FailedPrecondition


class Deleter:
    """The hiding of versions in one store."""

    def __init__(self, layout: Layout, disk: Disk, aliases: Aliases, clock: Callable[[], float]) -> None:
        self._layout, self._disk, self._aliases, self._clock = layout, disk, aliases, clock

    def delete(self, version: VersionRef) -> bool:
        """Hides the version: False when somebody else did. FailedPrecondition while an alias names it."""
        return self._hide(version, self._refuse_aliased)

    def evict(self, version: VersionRef) -> bool:
        """Hides the version unless an alias or a reader has it now. Whether it was hidden here."""
        try:
            return self._hide(version, self._refuse_used)
        except FailedPrecondition:
            return False

    def withdraw(self, version: VersionRef) -> None:
        """Shows a hidden version again."""
        tombstone = self._layout.tombstone(*version)
        self._disk.remove_tree(tombstone)
        self._disk.sync_dir(tombstone.parent)

    def _hide(self, version: VersionRef, refuse: Callable[[VersionRef], None]) -> bool:
        refuse(version)
        with store_errors():
            if not self._bury(version):
                return False
            try:
                self._disk.sync_dir(self._layout.tombstone(*version).parent)
                refuse(version)  # an alias or a lease came between the first look and the tombstone
            except Exception:
                self.withdraw(version)
                raise
        return True

    def _bury(self, version: VersionRef) -> bool:
        """Makes the tombstone; its mtime is the time of the deletion. False when it was there."""
        tombstone = self._layout.tombstone(*version)
        self._disk.make_dirs(tombstone.parent)
        self._disk.failpoint("tombstone")
        try:
            tombstone.touch(exist_ok=False)
        except FileExistsError:
            return False
        os.utime(tombstone, (self._clock(), self._clock()))
        return True

    def _refuse_aliased(self, version: VersionRef) -> None:
        names = [alias.alias for alias in self._aliases.list(version.engine) if alias.version == version.version]
        if names:
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
