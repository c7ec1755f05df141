"""Tombstones: an empty file that hides a version at once, and says for ever that its number is spent.

A tombstone's mtime is the time of the deletion. It is confirmed (read-only) once the deleter has seen that no alias
came in between: a version that an alias names loses its files only under a confirmed tombstone.
"""

from __future__ import annotations

from engine_store.disk import Disk
from engine_store.layout import Layout
from engine_store.names import VersionRef
from engine_store.owner import new_token


class Tombstones:
    """The tombstones of one store."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        self._layout, self._disk = layout, disk

    def there(self, version: VersionRef) -> bool:
        """Whether the version has one."""
        return self._layout.tombstone(*version).exists()

    def make(self, version: VersionRef, time: float, step: str) -> bool:
        """Makes it, durably and with its time; False when it was there. The steps `.folder`, `.draft`, `.tombstone`
        and `.sync`."""
        path = self._layout.tombstone(*version)
        self._disk.make_dirs(path.parent, f"{step}.folder")
        draft = self._layout.staging / new_token()
        try:
            self._disk.touch(draft, time, f"{step}.draft.write")
            self._disk.sync_file(draft, f"{step}.draft.sync")
            made = self._disk.link(draft, path, f"{step}.tombstone")
            if made:
                self._disk.sync_dir(path.parent, f"{step}.sync")
        finally:
            self._disk.drop(draft, f"{step}.draft.remove")
        return made

    def confirm(self, version: VersionRef) -> None:
        """Says that no alias named the version after the tombstone was made."""
        self._disk.chmod(self._layout.tombstone(*version), 0o444, "delete.confirm")

    def confirmed(self, version: VersionRef) -> bool:
        """Whether `confirm` was called."""
        return self._layout.tombstone(*version).stat().st_mode & 0o222 == 0

    def remove(self, version: VersionRef, step: str) -> None:
        """Shows the version again: the steps `.remove` and `.sync`."""
        path = self._layout.tombstone(*version)
        self._disk.remove(path, f"{step}.remove")
        self._disk.sync_dir(path.parent, f"{step}.sync")
