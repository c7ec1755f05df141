"""Digests checked while a loader reads: small files before it begins, the weights beside it.

    with checked_while_loading(store, manifest):
        ...  # every file but the weights is as the manifest says
    # so were the weights, and no file changed meanwhile

The hashing threads and the loader share the page cache, so a disk is read once. What was loaded is to be trusted only
after the block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from engine_store.digests import MAX_THREADS, digest_file
from engine_store.inspection import Problem, damaged
from engine_store.manifest import File, Manifest
from engine_store.store import EngineStore
from enginehouse.errors import DataLoss

WEIGHTS = "weights/"
"""Files below it are read in bounds by their loader, whatever is in them; all others are checked before."""

Progress = Callable[[int, int], None]
"""Called with the bytes checked and the bytes of the whole, from any thread. What it raises ends the checking."""


@contextmanager
def checked_while_loading(
    store: EngineStore, manifest: Manifest, progress: Progress = lambda done, total: None
) -> Iterator[None]:
    """Runs the block over files that are checked; see the module.

    Raises:
        DataLoss: reason FILE_DAMAGED; metadata `file`, `problem`, and `expected` and `found` where there are two
            sides. Also in the place of a DataLoss of the block, when damage explains it.
    """
    check = _Check(store, manifest, progress)
    weights = [file for file in manifest.files if file.path.startswith(WEIGHTS)]
    check.manifest()
    check.refuse_unexpected()
    for file in manifest.files:
        check.size(file)
    check.digests(file for file in manifest.files if file not in weights)
    with ThreadPoolExecutor(1, "digests") as pool:
        hashing = pool.submit(check.digests, weights)
        try:
            yield
        except DataLoss:
            hashing.result()
            raise
        except BaseException:
            check.stop()
            raise
        hashing.result()
    check.unchanged()


def _threads() -> int:
    """Half of the cores: the loader works on the others."""
    return max(1, min(MAX_THREADS, (os.cpu_count() or 1) // 2))


class _Identity(NamedTuple):
    """Tells one content of a path from another. No ctime: a further hard link changes it."""

    device: int
    inode: int
    size: int
    mtime_ns: int


class _Stopped(Exception):
    """The loader failed: nobody waits for digests."""


class _Check:
    """The state of one checking. `stop` may be called from another thread."""

    def __init__(self, store: EngineStore, manifest: Manifest, progress: Progress) -> None:
        self._store, self._manifest, self._progress = store, manifest, progress
        self._total = sum(file.size_bytes for file in manifest.files)
        self._done = 0
        self._seen: dict[File, _Identity] = {}
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def manifest(self) -> None:
        """`engine.json` is as it was published: all else is held to it."""
        if (problem := self._store.check_manifest(self._manifest)) is not None:
            raise self._damaged(*problem)

    def refuse_unexpected(self) -> None:
        """A loader may read any file that it finds, so there must be none beside the manifest's."""
        for path in self._store.unexpected_files(self._manifest):
            raise self._damaged(path, "unexpected")

    def size(self, file: File) -> None:
        self._seen[file] = found = self._identity(file)
        if found.size != file.size_bytes:
            raise self._damaged(file.path, "size", file.size_bytes, found.size)

    def digests(self, files: Iterable[File]) -> None:
        for file in files:
            self._digest(file)

    def _digest(self, file: File) -> None:
        try:
            found = digest_file(self._path(file), _threads(), self._advance)
        except OSError as error:
            raise self._damaged(file.path, "unreadable") from error
        if found.size_bytes != file.size_bytes:
            raise self._damaged(file.path, "size", file.size_bytes, found.size_bytes)
        if found.digest != file.digest:
            raise self._damaged(file.path, "digest", file.digest, found.digest)

    def unchanged(self) -> None:
        """What was hashed is what was loaded: no file was replaced or written in between."""
        for file, before in self._seen.items():
            if self._identity(file) != before:
                raise self._damaged(file.path, "changed while it was loaded")

    def _advance(self, count: int) -> None:
        if self._stopped:
            raise _Stopped
        self._done += count
        self._progress(self._done, self._total)

    def _identity(self, file: File) -> _Identity:
        try:
            stat = os.stat(self._path(file), follow_symlinks=False)
        except OSError as error:
            raise self._damaged(file.path, "missing") from error
        return _Identity(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)

    def _path(self, file: File) -> Path:
        try:
            return self._store.file_path(self._manifest, file)
        except DataLoss as error:
            raise self._damaged(file.path, "missing") from error

    def _damaged(self, path: str, problem: str, expected: object = "", found: object = "") -> DataLoss:
        return damaged(self._manifest, Problem(path, problem, str(expected), str(found)))
