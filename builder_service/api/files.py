"""A version's files: sent to a client, or read again and checked, under a lease that is renewed meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

from engine_store import EngineStore, Manifest
from engine_store.digests import digest_file
from engine_store.layout import MANIFEST
from engine_store.manifest import File
from engine_store.store import Problem
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse.errors import Cancelled, NotFound, ResourceExhausted
from service_kit import logs

log = logs.logger("builder.files")

CHUNK_BYTES = 1 << 20
RENEW_SECONDS = 20.0
UNREAD_SECONDS = 120.0
_FOLDER_OF_TARGET = {"torch": "weights", "tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}

Write = Callable[[pb.FileChunk], Awaitable[Any]]
Progress = Callable[[int, int], None]


class Files:
    """The files of a store's versions.

    Args:
        renew_seconds: between renewals of a lease.
        unread_seconds: the longest that a client may leave one chunk unread.
    """

    def __init__(
        self, store: EngineStore, renew_seconds: float = RENEW_SECONDS, unread_seconds: float = UNREAD_SECONDS
    ) -> None:
        self._store, self._renew_seconds, self._unread_seconds = store, renew_seconds, unread_seconds
        self._reading = asyncio.Semaphore(1)

    async def send(self, manifest: Manifest, targets: Sequence[str], write: Write) -> None:
        """Sends engine.json and the files of these targets (none: all), piece by piece; holds one piece at a time.

        Raises:
            NotFound: TARGET_NOT_FOUND, or the version is gone.
            DataLoss: a file is missing or leads out of the version.
            ResourceExhausted: STREAM_NOT_READ.
        """
        wanted = wanted_files(manifest, targets)
        async with self._held(manifest):
            async for chunk in self._chunks(manifest, wanted):
                await self._write(chunk, write)

    async def inspect(self, manifest: Manifest, progress: Progress) -> list[Problem]:
        """Reads every file again; see `EngineStore.inspect`. One version at a time, others wait. `progress` is called
        in another thread."""
        stopped = threading.Event()

        def checked(done: int, total: int) -> None:
            if stopped.is_set():
                raise Cancelled("The check was cancelled.")
            progress(done, total)

        async with self._reading, self._held(manifest):
            try:
                return await asyncio.to_thread(self._store.inspect, manifest.name, manifest.version, checked)
            finally:
                stopped.set()  # when the operation was cancelled: ends the thread too

    @asynccontextmanager
    async def _held(self, manifest: Manifest) -> AsyncIterator[None]:
        lease = await asyncio.to_thread(self._store.lease, manifest.name, manifest.version)

        async def renew() -> None:
            while True:
                await asyncio.sleep(self._renew_seconds)
                try:
                    await asyncio.to_thread(lease.renew)
                except OSError:
                    log.exception("renewing a lease failed; it is tried again", engine=manifest.name)

        renewing = asyncio.create_task(renew(), name="lease")
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await asyncio.to_thread(lease.release)

    async def _write(self, chunk: pb.FileChunk, write: Write) -> None:
        try:
            async with asyncio.timeout(self._unread_seconds):
                await write(chunk)
        except TimeoutError as error:
            raise ResourceExhausted(
                f"The client did not read its download for {self._unread_seconds:g} s; read the pieces as they come.",
                reason="STREAM_NOT_READ",
                metadata={"seconds": self._unread_seconds},
            ) from error

    async def _chunks(self, manifest: Manifest, wanted: Sequence[File]) -> AsyncIterator[pb.FileChunk]:
        folder = await asyncio.to_thread(self._store.version_path, manifest.name, manifest.version)
        found = await asyncio.to_thread(digest_file, folder / MANIFEST)
        head = File(path=MANIFEST, size_bytes=found.size_bytes, digest=found.digest)
        async for chunk in _read_chunks(folder / MANIFEST, head):
            yield chunk
        for file in wanted:
            path = await asyncio.to_thread(self._store.file_path, manifest, file)
            async for chunk in _read_chunks(path, file):
                yield chunk


def wanted_files(manifest: Manifest, targets: Sequence[str]) -> list[File]:
    """The files of the wanted targets, and all that belong to no target."""
    there = [target.form for target in manifest.targets]
    for target in targets:
        if target not in there:
            raise NotFound(
                f"This version has no target `{target[:60]}`; it has {', '.join(there)}.",
                reason="TARGET_NOT_FOUND",
                metadata={"target": target[:60], "targets": ",".join(there)},
            )
    unwanted = {_FOLDER_OF_TARGET[form] for form in there if targets and form not in targets}
    return [file for file in manifest.files if file.path.split("/")[0] not in unwanted]


async def _read_chunks(path: Path, file: File) -> AsyncIterator[pb.FileChunk]:
    """The file in pieces, at least one; the last carries the digest."""
    offset = 0
    with await asyncio.to_thread(path.open, "rb") as stream:
        while True:
            data = await asyncio.to_thread(_read, stream)
            last = offset + len(data) >= file.size_bytes or not data
            yield pb.FileChunk(
                path=file.path, offset=offset, data=data, size_bytes=file.size_bytes, digest=file.digest if last else ""
            )
            offset += len(data)
            if last:
                return


def _read(stream: BinaryIO) -> bytes:
    return stream.read(CHUNK_BYTES)
