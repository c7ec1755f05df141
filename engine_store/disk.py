"""Durable file operations. Each one passes a labelled failpoint first, so that tests can kill or fail it there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enginehouse.errors import Internal, ResourceExhausted

Failpoint = Callable[[str], None]
"""Called with the label of the step that follows. It may raise OSError or end the process."""

_LINK_REFUSED = {errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV}


def no_failpoint(label: str) -> None:
    """The failpoint of production: nothing happens."""


@contextmanager
def store_errors() -> Iterator[None]:
    """Turns an OSError of a write into a typed error; the cause stays chained for the log."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceExhausted(
                "The engine store is full; delete engine versions or enlarge its disk, then build again.",
                reason="STORE_FULL",
            ) from error
        name = errno.errorcode.get(error.errno or 0, "EIO")
        raise Internal(
            f"Writing to the engine store failed ({name}); nothing was published. The builder's log has the details.",
            reason="STORE_IO",
            metadata={"errno": name},
        ) from error


@dataclass(frozen=True)
class Disk:
    """The operations. A failed fsync raises: what was written is in doubt, and the caller abandons it."""

    failpoint: Failpoint = no_failpoint

    def sync_file(self, path: Path) -> None:
        self.failpoint("fsync.file")
        _fsync(path, os.O_RDONLY | os.O_NOFOLLOW)

    def sync_dir(self, path: Path) -> None:
        self.failpoint("fsync.dir")
        _fsync(path, os.O_RDONLY | os.O_DIRECTORY)

    def write(self, path: Path, data: bytes) -> None:
        """Writes a new file and syncs it."""
        self.failpoint("write")
        with path.open("xb") as file:
            file.write(data)
        self.sync_file(path)

    def make_dirs(self, path: Path) -> None:
        """Makes the directory and its parents, each new entry durable."""
        if path.is_dir():
            return
        self.make_dirs(path.parent)
        self.failpoint("mkdir")
        path.mkdir(exist_ok=True)
        self.sync_dir(path.parent)

    def link(self, source: Path, target: Path) -> bool:
        """Links `source` to the new name `target`: False when the name is taken. Over NFS a link that was sent twice
        reports a taken name though it is ours; the shared inode tells."""
        self.failpoint("link")
        try:
            os.link(source, target, follow_symlinks=False)
        except FileExistsError:
            return _same_inode(source, target)
        return True

    def rename(self, source: Path, target: Path) -> None:
        self.failpoint("rename")
        os.rename(source, target)

    def remove_tree(self, path: Path) -> None:
        """Removes a file or directory; one that is gone is fine."""
        self.failpoint("remove")
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=False, onerror=_ignore_missing)
        else:
            path.unlink(missing_ok=True)


def link_refused(error: OSError) -> bool:
    """Whether the file system cannot hard-link here (as opposed to a failure)."""
    return error.errno in _LINK_REFUSED


def _fsync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _same_inode(left: Path, right: Path) -> bool:
    try:
        return os.path.samestat(left.lstat(), right.lstat())
    except FileNotFoundError:
        return False


def _ignore_missing(function: object, path: str, info: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(info[1], FileNotFoundError):  # another cleaner took it
        raise info[1]
