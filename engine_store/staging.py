"""A directory to write an engine version into, beside the store's versions and on the same file system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from engine_store.disk import Disk, store_errors
from engine_store.layout import MANIFEST
from engine_store.manifest import Manifest
from engine_store.names import check_id
from engine_store.publish import Published, Publisher
from enginehouse.errors import EnginehouseError, Internal


class Staging:
    """Write files under `path`, then call `publish` once. Leaving the block without it discards everything.

    with store.stage() as staging:
        (staging.path / "graph.json").write_bytes(...)
        published = staging.publish(manifest)
    """

    def __init__(self, path: Path, publisher: Publisher, disk: Disk, read: Callable[[str, int], Manifest]) -> None:
        self.path = path
        self._publisher, self._disk, self._read = publisher, disk, read
        self._decided = False

    def publish(self, manifest: Manifest, *, force: bool = False) -> Published:
        """Publishes what lies under `path`, durably.

        Args:
            manifest: the record of the version; `version` and `files` are filled in here.
            force: publish even when a version with this build key exists.

        Returns:
            The manifest now in the store. When a version with the same name and build key was there (or another
            process won the race), that one with `reused=True`, and the staged files are dropped.

        Raises:
            ResourceExhausted: STORE_FULL. Internal: STORE_IO and others. In each case nothing was published.
        """
        check_id(manifest.name, "engine_id")
        if (self.path / MANIFEST).exists():
            raise Internal(f"The build staged its own {MANIFEST}; the store writes it.", reason="STAGED_MANIFEST")
        with store_errors():
            if not force and (found := self._publisher.carrier(manifest.name, manifest.build_key)):
                return Published(self._read(manifest.name, found.version), reused=True)
            files = self._publisher.prepare(self.path)
            sealed = self._publisher.seal(self.path, msgspec.structs.replace(manifest, files=files))
            self._decided = True  # from here on a record may name this directory: recovery owns it
            winner = self._publisher.decide(self.path, sealed, force)
            if winner.token != self.path.name:
                self._decided = False
                return Published(self._read(manifest.name, winner.version), reused=True)
            self._publisher.finish(manifest.name, winner)
        return Published(sealed.manifest, reused=False)

    def discard(self) -> None:
        """Removes what was staged, unless it was published. Safe to repeat."""
        with store_errors():
            if not self._decided:
                self._disk.remove_tree(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.discard()
        except EnginehouseError:
            if error is None:  # else a failing disk: the first error says it, and recovery clears up
                raise
