"""Files that a daemon streams in pieces, written below a directory and checked against their digests."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from enginehouse.errors import DataLoss, FailedPrecondition

PIECE_BYTES = 64 * 1024 * 1024
MANIFEST = "engine.json"
PARTIAL = ".partial"


class PieceDigest:
    """sha256 over the sha256 of each 64 MiB piece."""

    def __init__(self) -> None:
        self._pieces, self._piece, self._filled = hashlib.sha256(), hashlib.sha256(), 0

    def update(self, data: bytes) -> None:
        while data:
            part = data[: PIECE_BYTES - self._filled]
            self._piece.update(part)
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == PIECE_BYTES:
                self._close_piece()

    def hexdigest(self) -> str:
        if self._filled:
            self._close_piece()
        return self._pieces.hexdigest()

    def _close_piece(self) -> None:
        self._pieces.update(self._piece.digest())
        self._piece, self._filled = hashlib.sha256(), 0


def safe_path(directory: Path, name: str) -> Path:
    """`name` below `directory`.

    Raises:
        DataLoss: the name would lead out of the directory.
        FailedPrecondition: a link in the directory would.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\\" in name or ".." in parts or "\0" in name:
        raise DataLoss(f"The daemon sent a file with the bad name {name!r}.", reason="BAD_FILE_NAME")
    path = directory.joinpath(*parts)
    if not path.parent.resolve().is_relative_to(directory.resolve()):
        raise FailedPrecondition(
            f"{path.parent} is a link out of {directory}; remove it, or download into an empty directory.",
            reason="LINK_OUT_OF_DIRECTORY",
            metadata={"path": path.parent},
        )
    return path


def write_files(
    chunks: Iterable[Any],
    directory: Path,
    progress: Callable[[int], object] = lambda done: None,
    new_digest: Callable[[], Any] = PieceDigest,
    digest_field: str = "digest",
) -> dict[str, str]:
    """Writes the files of a stream of chunks (`path`, `data`, a digest in each file's last piece, and `offset` and
    `size_bytes` where the message has them). A file appears under its name once it is whole; what was begun and did
    not come to its end is removed.

    Args:
        progress: called with the bytes written so far.

    Returns:
        The digests of the files, by path.

    Raises:
        DataLoss: pieces do not follow each other, a file's bytes do not match its digest, or its end is missing.
    """
    done, digests, file = 0, {}, None
    try:
        for chunk in chunks:
            if file is None or chunk.path != file.name:
                _expect_closed(file)
                file = _Incoming(directory, chunk.path, new_digest())
            file.write(chunk)
            done += len(chunk.data)
            progress(done)
            expected = getattr(chunk, digest_field)
            if expected or file.complete(chunk):
                file.finish(expected)
                digests[file.name], file = expected, None
        _expect_closed(file)
    finally:
        if file is not None:
            file.discard()
    return digests


def empty_directory(directory: Path) -> Path:
    """The directory, which may be missing; FailedPrecondition where something is in it."""
    if directory.is_dir() and any(directory.iterdir()):
        raise FailedPrecondition(
            f"{directory} is not empty; give a new or an empty directory.",
            reason="DIRECTORY_NOT_EMPTY",
            metadata={"directory": directory},
        )
    return directory


def clear(directory: Path) -> None:
    """Removes what is in a directory that was empty."""
    for entry in directory.iterdir() if directory.is_dir() else ():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


class _Incoming:
    """A file that is being written beside its name."""

    def __init__(self, directory: Path, name: str, digest: Any) -> None:
        self.name, self._digest, self._size = name, digest, 0
        self._path = safe_path(directory, name)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._partial = self._path.with_name(self._path.name + PARTIAL)
        self._partial.unlink(missing_ok=True)  # of a client that was killed
        self._stream: BinaryIO = self._partial.open("xb")

    def write(self, chunk: Any) -> None:
        end = self._size + len(chunk.data)
        if getattr(chunk, "offset", self._size) != self._size or end > getattr(chunk, "size_bytes", end):
            raise DataLoss(f"The pieces of {self.name} do not follow each other; try again.", reason="BAD_PIECE")
        self._stream.write(chunk.data)
        self._digest.update(chunk.data)
        self._size = end

    def complete(self, chunk: Any) -> bool:
        """Whether this was the last piece, where the message says so."""
        return hasattr(chunk, "size_bytes") and self._size == int(chunk.size_bytes)

    def finish(self, expected: str) -> None:
        """Checks the digest and gives the file its name. `expected` is "scheme:hex"; only the manifest, which holds the
        digests of all others, may come without."""
        found = self._digest.hexdigest()
        if expected.rpartition(":")[2] != found and (expected or self.name != MANIFEST):
            self.discard()
            raise DataLoss(
                f"{self.name} did not arrive as it was sent; try again, and verify the engine if it happens again.",
                reason="DIGEST_MISMATCH",
                metadata={"path": self.name, "expected": expected, "found": found},
            )
        self._stream.close()
        self._partial.replace(self._path)

    def discard(self) -> None:
        self._stream.close()
        self._partial.unlink(missing_ok=True)


def _expect_closed(file: _Incoming | None) -> None:
    if file is not None:
        raise DataLoss(f"{file.name} was not sent to its end; try again.", reason="INCOMPLETE_FILE")
