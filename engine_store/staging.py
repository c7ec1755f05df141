"""A directory to write an engine version into, beside the store's versions and on the same file system."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from engine_store.digests import Progress
from engine_store.disk import Disk, store_errors
from engine_store.layout import MANIFEST
from engine_store.manifest import Manifest
from engine_store.names import VersionRef, check_id
from engine_store.publish import Published, Publisher
from enginehouse.errors import EnginehouseError, Internal, NotFound


class Staging:
    """Write files under `path`, then call `publish` once. Leaving the block without it discards everything.

    with store.stage() as staging:
        (staging.path / "graph.json").write_bytes(...)
        published = staging.publish(manifest)
    """

    def __init__(self, path: Path, publisher: Publisher, disk: Disk, read: Callable[[str, int], Manifest]) -> None:
        self.path = path
        self._publisher, self._disk, self._read = publisher, disk, read
        self._numbered: Manifest | None = None
        """The manifest with the number that we claimed for it."""

    def publish(self, manifest: Manifest, *, force: bool = False, progress: Progress = lambda count: None) -> Published:
        """Publishes what lies under `path`, durably.

        Args:
            manifest: the record of the version; `version` and `files` are filled in here.
            force: publish even when a version with this build key exists.
            progress: called with the bytes of each piece of a file that was hashed.

        Returns:
            The manifest now in the store. When a version with the same name and build key was there (or another
            process won the race), that one with `reused=True`, and the staged files are dropped.

        Raises:
            ResourceExhausted: STORE_FULL. Internal: STORE_IO and others. Where the disk failed at the very end, the
            version may be published all the same, whole: `EngineStore.published_by` tells.
        """
        check_id(manifest.name, "engine_id")
        if (self.path / MANIFEST).exists():
            raise Internal(f"The build staged its own {MANIFEST}; the store writes it.", reason="STAGED_MANIFEST")
        with store_errors():
            if not force and (found := self._publisher.carrier(manifest.name, manifest.build_key)):
                with contextlib.suppress(NotFound):  # deleted since
                    return Published(self._read(manifest.name, found.version), reused=True)
            files = self._publisher.prepare(self.path, progress)
            number = self._publisher.claims.take(manifest.name)
            self._numbered = msgspec.structs.replace(manifest, version=number, files=files)
            sealed = self._publisher.seal(self.path, self._numbered)
            while (winner := self._publisher.decide(self.path, sealed, force)).token != self.path.name:
                with contextlib.suppress(NotFound):  # deleted since: it carries the key no more
                    return Published(self._read(manifest.name, winner.version), reused=True)
            if not self._publisher.finish(manifest.name, manifest.build_key, winner):
                raise Internal("What was staged is gone: a cleaner took its writer for dead.", reason="STAGING_LOST")
        return Published(sealed.manifest, reused=False)

    def discard(self) -> None:
        """Removes what was staged and the number that was claimed for it, unless a record names them: then the
        version is in the store, or whoever meets the record puts it there. Safe to repeat."""
        staged, self._numbered = self._numbered, None
        with store_errors():
            if staged and self._publisher.decided(staged.name, staged.build_key, self.path.name):
                return
            self._disk.remove(self.path, "discard.tree.remove")
            if staged:
                self._publisher.claims.remove(VersionRef(staged.name, staged.version), "discard.claim")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.discard()
        except EnginehouseError:
            if error is None:  # else the first error tells of the failing disk, and recovery clears up
                raise
