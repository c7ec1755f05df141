"""Digests of source files, remembered by what the file system says about a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from builder_service.sources.base import Progress, reading, write_whole
from engine_store.digests import digest_file


class DigestCache:
    """Digests by (path, size, mtime, inode), one small file each under `directory`. Safe for several processes.

    `stated`: digests by real path that are known already, the hub's, which its files were checked against.
    """

    def __init__(self, directory: Path, stated: Mapping[Path, str] | None = None) -> None:
        self._directory = directory
        self._stated = stated or {}

    def tree(self, root: Path, files: tuple[str, ...], progress: Progress) -> str:
        """ "sha256:<hex>" over the names and digests of `files` under `root`, in order."""
        sizes = {name: (root / name).stat().st_size for name in files}
        total, digest, done, end = sum(sizes.values()), hashlib.sha256(), 0, 0

        def on_piece(count: int) -> None:
            nonlocal done
            done += count
            progress(min(done, total), total)

        for name in files:
            digest.update(f"{name}\0{self.file(root / name, on_piece)}\n".encode())
            end += sizes[name]
            done = end  # also where nothing had to be read
            progress(done, total)
        return f"sha256:{digest.hexdigest()}"

    def file(self, path: Path, on_piece: Callable[[int], None] = lambda count: None) -> str:
        """The digest of one file. `on_piece` is called with the bytes of each piece that was read."""
        real = path.resolve()
        if real in self._stated:
            return self._stated[real]
        record = self._record(path)
        if record.is_file():
            return record.read_text()
        with reading(path.name):
            digest = digest_file(real, progress=on_piece).digest
        if self._record(path) == record:  # unchanged while it was read
            write_whole(record, digest.encode())
        return digest

    def _record(self, path: Path) -> Path:
        stat = path.stat()
        key = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}"
        return self._directory / hashlib.sha256(key.encode()).hexdigest()
