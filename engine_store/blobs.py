"""Content-addressed blobs: a large file is stored once and hard-linked into every version that has it."""

from __future__ import annotations

from pathlib import Path

from engine_store.digests import PREFIX, FileDigest, digest_file
from engine_store.disk import Disk, link_refused
from engine_store.layout import Layout
from engine_store.owner import new_token

MIN_BLOB_BYTES = 1 << 20


class Blobs:
    """The blobs of one store."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        self._layout, self._disk = layout, disk

    def share(self, path: Path, found: FileDigest) -> None:
        """Makes the staged, synced file `path` and its blob one inode. Where the file system refuses links, the
        staged file stays the version's own copy."""
        if found.size_bytes < MIN_BLOB_BYTES:
            return
        blob = self._layout.blob(found.digest.removeprefix(PREFIX))
        self._disk.make_dirs(blob.parent, "publish.blob.folder")
        try:
            while not self._disk.link(path, blob, "publish.blob.link"):
                if self._take(blob, path, found):
                    return
        except OSError as error:
            if not link_refused(error):
                raise
            return
        self._disk.sync_dir(blob.parent, "publish.blob.sync")

    def _take(self, blob: Path, path: Path, found: FileDigest) -> bool:
        """Replaces `path` by the existing blob; False when the blob vanished meanwhile. A blob that no longer has
        its digest (a bad disk) is replaced by `path` instead, so that it spoils no further version."""
        scratch = self._layout.staging / new_token()
        try:
            if digest_file(blob) == found:
                self._disk.link(blob, scratch, "publish.blob.take")
                self._disk.rename(scratch, path, "publish.blob.take.rename")
            else:
                self._disk.link(path, scratch, "publish.blob.heal")
                self._disk.rename(scratch, blob, "publish.blob.heal.rename")
        except FileNotFoundError:
            return False
        finally:
            self._disk.drop(scratch, "publish.blob.draft.remove")  # rename of two links to one inode leaves both
        return True

    def collect(self) -> int:
        """Removes blobs that no version and no staged file links; the number removed."""
        unused = [blob for blob in self._layout.blobs.glob("??/*") if _links(blob) == 1]
        for blob in unused:
            self._disk.remove(blob, "collect.blob.remove")
        return len(unused)


def _links(path: Path) -> int:
    try:
        return path.lstat().st_nlink
    except FileNotFoundError:
        return 0
