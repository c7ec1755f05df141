"""Files that a daemon streams in pieces, written below a directory and checked against their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from enginehouse.errors import DataLoss

PIECE_BYTES = 64 * 1024 * 1024


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
    """`name` below `directory`. Raises DataLoss for a name that would lead out of it."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\\" in name or ".." in parts or "\0" in name:
        raise DataLoss(f"The daemon sent a file with the bad name {name!r}.", reason="BAD_FILE_NAME")
    return directory.joinpath(*parts)


def write_files(
    chunks: Iterable[Any],
    directory: Path,
    progress: Callable[[int], object] = lambda done: None,
    new_digest: Callable[[], Any] = PieceDigest,
    digest_field: str = "digest",
) -> None:
    """Writes the files of a stream of chunks (`path`, `data`, a digest in each file's last piece, and `size_bytes`
    where the message has it).

    Raises:
        DataLoss: a file's bytes do not match its digest, or its end is missing.
    """
    done, path, digest, file = 0, "", new_digest(), None
    try:
        for chunk in chunks:
            if file is None or chunk.path != path:
                _expect_closed(file, path)
                path, digest = chunk.path, new_digest()
                target = safe_path(directory, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                file = target.open("wb")
            file.write(chunk.data)
            digest.update(chunk.data)
            done += len(chunk.data)
            progress(done)
            expected = getattr(chunk, digest_field)
            if expected or (hasattr(chunk, "size_bytes") and file.tell() == chunk.size_bytes):
                file.close()
                file = None
                _check_digest(path, expected, digest.hexdigest())
        _expect_closed(file, path)
    finally:
        if file is not None:
            file.close()


def _expect_closed(file: Any, path: str) -> None:
    if file is not None:
        raise DataLoss(f"{path} was not sent to its end; try again.", reason="INCOMPLETE_FILE")


def _check_digest(path: str, expected: str, found: str) -> None:
    """`expected` is "scheme:hex", or "" for the manifest, which holds the digests of all others."""
    if expected and expected.rpartition(":")[2] != found:
        raise DataLoss(
            f"{path} did not arrive as it was sent; try again, and verify the engine if it happens again.",
            reason="DIGEST_MISMATCH",
            metadata={"path": path, "expected": expected, "found": found},
        )
