"""Durable file operations. Each one passes a labelled failpoint first, so that tests can kill or fail it there."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from enginehouse.errors import EnginehouseError, FailedPrecondition, Internal, ResourceExhausted, Unavailable

Failpoint = Callable[[str], None]
"""Called with the label of the step that follows. It may raise OSError or end the process."""

_LINK_REFUSED = {errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV}


def no_failpoint(label: str) -> None:
    """The failpoint of production: nothing happens."""


@contextmanager
def store_errors() -> Iterator[None]:
    """Turns an OSError of the store's disk into a typed error; the cause stays chained for the log."""
    try:
        yield
    except EnginehouseError:  # some are OSErrors, too
        raise
    except OSError as error:
        raise _typed(error) from error


def _typed(error: OSError) -> EnginehouseError:
    name = errno.errorcode.get(error.errno or 0, "EIO")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceExhausted(
            "The engine store is full; delete engine versions or enlarge its disk, then build again.",
            reason="STORE_FULL",
        )
    if error.errno == errno.EROFS:
        return FailedPrecondition(
            "The engine store is mounted read-only; mount it writable, then try again.", reason="STORE_READ_ONLY"
        )
    if error.errno == errno.ESTALE:
        return Unavailable(
            "The engine store's file system went away (ESTALE); mount it again, then repeat the call.",
            reason="STORE_UNAVAILABLE",
        )
    return Internal(
        f"The engine store's disk failed ({name}); repair it and repeat the call. The server's log has the details.",
        reason="STORE_IO",
        metadata={"errno": name},
    )


@dataclass(frozen=True)
class Disk:
    """The operations; each takes the label of its step, see steps.py. A failed fsync raises: what was written is in
    doubt, and the caller abandons it."""

    root: Path
    failpoint: Failpoint = no_failpoint
    _durable: set[Path] = field(default_factory=set)
    """Directories whose entry this process has synced."""

    def sync_file(self, path: Path, step: str) -> None:
        self.failpoint(step)
        _fsync(path, os.O_RDONLY | os.O_NOFOLLOW)

    def sync_dir(self, path: Path, step: str) -> None:
        self.failpoint(step)
        _fsync(path, os.O_RDONLY | os.O_DIRECTORY)

    def write(self, path: Path, data: bytes, step: str, *, mode: int = 0o444, time: float | None = None) -> None:
        """Writes a new file and syncs it: the steps `.write` and `.sync`. `time`: its mtime in seconds since the epoch,
        where it matters."""
        self.failpoint(f"{step}.write")
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if time is not None:
                os.utime(file.fileno(), (time, time))
        self.sync_file(path, f"{step}.sync")

    def make_dir(self, path: Path, step: str) -> None:
        """Makes a directory that must not exist."""
        self.failpoint(step)
        path.mkdir()

    def make_dirs(self, path: Path, step: str) -> None:
        """Makes the directory and its parents: the steps `.mkdir` and `.sync`. Each entry from the store's root down
        is durable then, whoever made it: another writer may have died before it could sync its own."""
        if self.root not in self._durable:
            self._make_root(step)
        folder = self.root
        for part in path.relative_to(self.root).parts:
            parent, folder = folder, folder / part
            if folder in self._durable and folder.is_dir():
                continue
            if not folder.is_dir():
                self.failpoint(f"{step}.mkdir")
                folder.mkdir(exist_ok=True)
            self.sync_dir(parent, f"{step}.sync")
            self._durable.add(folder)

    def _make_root(self, step: str) -> None:
        if not self.root.is_dir():
            self.failpoint(f"{step}.mkdir")
            self.root.mkdir(parents=True, exist_ok=True)
        if not any(self.root.iterdir()):  # new: whoever made it may have died before it could sync its entry
            with contextlib.suppress(PermissionError):  # the operator's own mount point
                self.sync_dir(self.root.parent, f"{step}.sync")
        self._durable.add(self.root)

    def touch(self, path: Path, time: float, step: str) -> None:
        """Gives the empty file this mtime (seconds since the epoch), and makes it where it is missing."""
        self.failpoint(step)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.utime(fd, (time, time))  # of the descriptor: the name may be removed in between
        finally:
            os.close(fd)

    def chmod(self, path: Path, mode: int, step: str) -> None:
        self.failpoint(step)
        path.chmod(mode)

    def link(self, source: Path, target: Path, step: str) -> bool:
        """Links `source` to the new name `target`: False when the name is taken. Over NFS a link that was sent twice
        reports a taken name though it is ours; the shared inode tells."""
        self.failpoint(step)
        try:
            os.link(source, target, follow_symlinks=False)
        except FileExistsError:
            return _same_inode(source, target)
        return True

    def rename(self, source: Path, target: Path, step: str) -> None:
        """Renames; a file under the new name is replaced."""
        self.failpoint(step)
        os.rename(source, target)

    def remove(self, path: Path, step: str) -> None:
        """Removes a file or a whole directory; one that is gone is fine."""
        self.failpoint(step)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=False, onerror=_ignore_missing)
        else:
            path.unlink(missing_ok=True)

    def remove_dir(self, path: Path, step: str) -> bool:
        """Removes an empty directory: False when it is gone or not empty."""
        self.failpoint(step)
        try:
            path.rmdir()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True

    def drop(self, path: Path, step: str) -> None:
        """Removes a draft whose work is done or has failed. One that stays harms nobody: recovery removes it."""
        with contextlib.suppress(OSError):
            self.remove(path, step)


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
