"""Tombstones: a file that hides a version at once, and says for ever that its number is spent.

Its mtime is the time of the deletion, its content the deleter's token. It is confirmed (read-only) once the deleter has
seen that no alias came in between; where the deleter died before that, `Deleter.settle` looks in its place.
"""

from __future__ import annotations

from engine_store.disk import Disk
from engine_store.layout import Layout
from engine_store.names import VersionRef
from engine_store.owner import new_token

UNCONFIRMED, CONFIRMED = 0o644, 0o444


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
        for folder in (path.parent, self._layout.staging):
            self._disk.make_dirs(folder, f"{step}.folder")
        draft = self._layout.staging / new_token()
        try:
            self._disk.write(draft, draft.name.encode(), f"{step}.draft", mode=UNCONFIRMED, time=time)
            made = self._disk.link(draft, path, f"{step}.tombstone")
            if made:
                self._disk.sync_dir(path.parent, f"{step}.sync")
        finally:
            self._disk.drop(draft, f"{step}.draft.remove")
        return made

    def confirm(self, version: VersionRef, step: str) -> None:
        """Says that no alias named the version after the tombstone was made: the step `.confirm`."""
        self._disk.chmod(self._layout.tombstone(*version), CONFIRMED, f"{step}.confirm")

    def unconfirmed(self, version: VersionRef) -> str | None:
        """The deleter's token while it has not confirmed; None when it has, or where there is no tombstone."""
        path = self._layout.tombstone(*version)
        try:
            return path.read_text(errors="replace") if path.stat().st_mode & 0o222 else None
        except FileNotFoundError:
            return None

    def remove(self, version: VersionRef, step: str) -> None:
        """Shows the version again: the steps `.remove` and `.sync`."""
        path = self._layout.tombstone(*version)
        self._disk.remove(path, f"{step}.remove")
        self._disk.sync_dir(path.parent, f"{step}.sync")
