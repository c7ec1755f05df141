"""Chunked digests: sha256 over the sha256 of each 64 MiB piece, so that pieces can be hashed in parallel."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

PREFIX = "sha256-64m:"
PIECE = 64 << 20
_BLOCK = 1 << 20
MAX_THREADS = 8

Progress = Callable[[int], None]


class FileDigest(NamedTuple):
    """A file's size in bytes and its digest, "sha256-64m:<hex>"."""

    size_bytes: int
    digest: str


def combine(pieces: Iterable[bytes]) -> str:
    """The digest of a file from the raw sha256 of each of its pieces, in order."""
    return PREFIX + hashlib.sha256(b"".join(pieces)).hexdigest()


def digest_bytes(data: bytes) -> str:
    """The digest of a file that holds `data`."""
    return combine(hashlib.sha256(data[start : start + PIECE]).digest() for start in range(0, len(data), PIECE))


def digest_file(path: Path, threads: int = MAX_THREADS, progress: Progress = lambda count: None) -> FileDigest:
    """Reads the file once, pieces in parallel (hashing and reading release the GIL). Symbolic links are refused.

    Args:
        progress: called with the bytes of each piece that is done, in order; what it raises ends the reading.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        starts = range(0, size, PIECE)
        pieces = []
        for start, piece in zip(starts, _digest_pieces(fd, starts, threads), strict=True):
            pieces.append(piece)
            progress(min(PIECE, size - start))
        return FileDigest(size, combine(pieces))
    finally:
        os.close(fd)


def _digest_pieces(fd: int, starts: range, threads: int) -> Iterator[bytes]:
    if len(starts) <= 1:
        yield from (_digest_piece(fd, start) for start in starts)
        return
    pool = ThreadPoolExecutor(min(threads, len(starts), os.cpu_count() or 1))
    try:
        yield from pool.map(lambda start: _digest_piece(fd, start), starts)
    finally:
        pool.shutdown(cancel_futures=True)


def _digest_piece(fd: int, start: int) -> bytes:
    """The raw sha256 of the piece at `start`. A file that shrinks meanwhile gives another digest, never an error."""
    piece = hashlib.sha256()
    block = memoryview(bytearray(_BLOCK))
    offset, end = start, start + PIECE
    while offset < end:
        count = os.preadv(fd, [block[: min(_BLOCK, end - offset)]], offset)
        if count == 0:
            break
        piece.update(block[:count])
        offset += count
    return piece.digest()
