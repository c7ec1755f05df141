"""Digests of source files, remembered by what the file system says about a file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from builder_service.sources.base import Progress
from engine_store.digests import digest_file


class DigestCache:
    """Digests by (path, size, mtime, inode), one small file each under `directory`. Safe for several processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def tree(self, root: Path, files: tuple[str, ...], progress: Progress) -> str:
        """ "sha256:<hex>" over the names and digests of `files` under `root`, in order."""
        total = sum((root / name).stat().st_size for name in files)
        digest, done = hashlib.sha256(), 0
        for name in files:
            digest.update(f"{name}\0{self.file(root / name)}\n".encode())
            done += (root / name).stat().st_size
            progress(done, total)
        return f"sha256:{digest.hexdigest()}"

    def file(self, path: Path) -> str:
        """The digest of one file."""
        record = self._record(path)
        if record.is_file():
            return record.read_text()
        digest = digest_file(path.resolve()).digest
        if self._record(path) == record:  # unchanged while it was read
            self._remember(record, digest)
        return digest

    def _record(self, path: Path) -> Path:
        stat = path.stat()
        key = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}"
        return self._directory / hashlib.sha256(key.encode()).hexdigest()

    def _remember(self, record: Path, digest: str) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        temporary = record.with_suffix(f".{os.getpid()}")
        temporary.write_text(digest)
        temporary.replace(record)
