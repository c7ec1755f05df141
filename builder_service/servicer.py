"""BuilderService: each method decodes, calls the supervisor or the store, and encodes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO

from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from builder_service import convert_proto, names
from builder_service.convert_proto import EngineView
from builder_service.estimate import Estimate, estimate
from builder_service.events import Finished
from builder_service.operations import BuilderOperations, first
from builder_service.requests import Site, only_validates, read_build
from builder_service.supervisor import Supervisor
from engine_store import EngineStore, Manifest
from engine_store.layout import MANIFEST
from engine_store.manifest import File
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2_grpc, engine_pb2
from enginehouse.errors import Cancelled, InvalidArgument, NotFound, Unavailable
from service_kit.operations import Handle
from service_kit.pagination import paginate, parse

CHUNK_BYTES = 1 << 20
_FOLDER_OF_TARGET = {"torch": "weights", "tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}


class BuilderServicer(builder_pb2_grpc.BuilderServiceServicer):
    """The builder's service. Store calls run in threads: shared storage may be slow.

    Args:
        draining: set when the daemon ends; open watches end then.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        store: EngineStore,
        operations: BuilderOperations,
        site: Site,
        draining: asyncio.Event,
    ) -> None:
        self._supervisor, self._store, self._operations = supervisor, store, operations
        self._site, self._draining = site, draining

    # Builds

    async def BuildEngine(self, request: pb.BuildEngineRequest, context: Any) -> operations_pb2.Operation:
        spec = await asyncio.to_thread(read_build, request, self._site)
        if only_validates(request):
            return _validated(request, await asyncio.to_thread(estimate, spec))
        job = self._supervisor.submit(spec, request.SerializeToString(deterministic=True), request.request_id)
        return await self._operations.encode(job)

    async def WatchBuild(self, request: pb.WatchBuildRequest, context: Any) -> AsyncIterator[pb.BuildEvent]:
        sequence = request.after_sequence
        if sequence < 0:
            raise InvalidArgument(
                "`after_sequence` is negative; give 0 for all events.", metadata={"field": "after_sequence"}
            )
        while not self._draining.is_set():
            changed = self._supervisor.changes.next(request.operation)
            stored = self._supervisor.jobs.events_after(request.operation, sequence)
            job = self._supervisor.jobs.get(request.operation)
            for each in stored:
                sequence = each.sequence
                version = await self._operations.version_of(job) if isinstance(each.event, Finished) else None
                yield convert_proto.build_event(job, each, version)
            if not stored and job.state.done:
                return
            if not stored:
                await first(changed.wait(), self._draining.wait())
        raise Unavailable(
            "This builder is shutting down; watch again once it is back.", reason="DRAINING", retry_after=1.0
        )

    # Engines and versions

    async def GetEngine(self, request: pb.GetEngineRequest, context: Any) -> engine_pb2.Engine:
        return convert_proto.engine(await asyncio.to_thread(self._view, names.engine_name(request.name)))

    async def ListEngines(self, request: pb.ListEnginesRequest, context: Any) -> pb.ListEnginesResponse:
        page = parse(request.page_size, request.page_token, "engines")
        ids, token = paginate(await asyncio.to_thread(self._store.list_engines), str, page, "engines")
        engines = [convert_proto.engine(view) for view in await asyncio.to_thread(self._views, ids)]
        return pb.ListEnginesResponse(engines=engines, next_page_token=token)

    async def GetEngineVersion(self, request: pb.GetEngineVersionRequest, context: Any) -> engine_pb2.EngineVersion:
        manifest = await asyncio.to_thread(self._store.resolve, *names.version_ref(request.name))
        return await self._encode(manifest)

    async def ListEngineVersions(
        self, request: pb.ListEngineVersionsRequest, context: Any
    ) -> pb.ListEngineVersionsResponse:
        engine = names.parent_engine(request.parent)
        scope = f"{request.parent}/versions {request.show_deleted}"
        page = parse(request.page_size, request.page_token, scope)
        versions = await asyncio.to_thread(self._versions, engine, request.show_deleted)
        keyed = {_version_key(version.name): version for version in versions}
        keys, token = paginate(keyed, str, page, scope)
        return pb.ListEngineVersionsResponse(engine_versions=[keyed[key] for key in keys], next_page_token=token)

    async def DeleteEngineVersion(
        self, request: pb.DeleteEngineVersionRequest, context: Any
    ) -> engine_pb2.EngineVersion:
        manifest = await asyncio.to_thread(self._store.delete_version, *names.version_name(request.name))
        return convert_proto.engine_version(manifest, delete_time=time.time())

    # Aliases

    async def SetAlias(self, request: pb.SetAliasRequest, context: Any) -> engine_pb2.Alias:
        engine, alias = names.alias_name(request.name)
        etag = request.etag or None
        return convert_proto.alias(await asyncio.to_thread(self._store.set_alias, engine, alias, request.version, etag))

    async def DeleteAlias(self, request: pb.DeleteAliasRequest, context: Any) -> empty_pb2.Empty:
        engine, alias = names.alias_name(request.name)
        await asyncio.to_thread(self._store.delete_alias, engine, alias, request.etag or None)
        return empty_pb2.Empty()

    async def ListAliases(self, request: pb.ListAliasesRequest, context: Any) -> pb.ListAliasesResponse:
        engine, scope = names.engine_name(request.parent, "parent"), f"{request.parent}/aliases"
        page = parse(request.page_size, request.page_token, scope)
        found = await asyncio.to_thread(self._store.list_aliases, engine)
        items, token = paginate(found, lambda alias: alias.alias, page, scope)
        return pb.ListAliasesResponse(aliases=map(convert_proto.alias, items), next_page_token=token)

    # Files

    async def VerifyEngineVersion(
        self, request: pb.VerifyEngineVersionRequest, context: Any
    ) -> operations_pb2.Operation:
        name = names.version_name(request.name)
        manifest = await asyncio.to_thread(self._store.get, *name)
        metadata = pb.VerifyEngineVersionMetadata(
            name=request.name,
            bytes_total=sum(file.size_bytes for file in manifest.files),
            create_time=convert_proto.timestamp(time.time()),
        )

        async def check(handle: Handle) -> pb.VerifyEngineVersionResponse:
            return await self._inspect(manifest, metadata, handle)

        return self._operations.checks.start(check, metadata, request, request.request_id)

    async def DownloadEngineVersion(
        self, request: pb.DownloadEngineVersionRequest, context: Any
    ) -> AsyncIterator[pb.FileChunk]:
        manifest = await asyncio.to_thread(self._store.resolve, *names.version_ref(request.name))
        wanted = _wanted_files(manifest, list(request.targets))
        with self._store.lease(manifest.name, manifest.version) as lease:
            renewed = time.monotonic()
            async for chunk in self._chunks(manifest, wanted):
                if time.monotonic() - renewed > 20:
                    lease.renew()
                    renewed = time.monotonic()
                yield chunk

    async def _chunks(self, manifest: Manifest, wanted: list[File]) -> AsyncIterator[pb.FileChunk]:
        folder = self._store.version_path(manifest.name, manifest.version)
        size = (folder / MANIFEST).stat().st_size
        async for chunk in _read_chunks(folder / MANIFEST, File(path=MANIFEST, size_bytes=size, digest="")):
            yield chunk
        for file in wanted:
            path = await asyncio.to_thread(self._store.file_path, manifest, file)
            async for chunk in _read_chunks(path, file):
                yield chunk

    async def _inspect(
        self, manifest: Manifest, metadata: pb.VerifyEngineVersionMetadata, handle: Handle
    ) -> pb.VerifyEngineVersionResponse:
        loop, stopped = asyncio.get_running_loop(), threading.Event()

        def progress(done: int, total: int) -> None:
            if stopped.is_set():
                raise Cancelled("The check was cancelled.")
            metadata.bytes_done = done
            loop.call_soon_threadsafe(handle.update, metadata)

        try:
            problems = await asyncio.to_thread(self._store.inspect, manifest.name, manifest.version, progress)
        finally:
            stopped.set()  # when the operation was cancelled: ends the thread too
        return pb.VerifyEngineVersionResponse(
            name=metadata.name,
            intact=not problems,
            problems=map(convert_proto.problem, problems),
            files_checked=len(manifest.files),
            bytes_checked=metadata.bytes_total,
        )

    async def _encode(self, manifest: Manifest) -> engine_pb2.EngineVersion:
        return convert_proto.engine_version(manifest, await asyncio.to_thread(self._store.list_aliases, manifest.name))

    def _view(self, engine: str) -> EngineView:
        return EngineView(self._store.list_versions(engine), self._store.list_aliases(engine))

    def _views(self, engines: list[str]) -> list[EngineView]:
        found = []
        for engine in engines:
            with contextlib.suppress(NotFound):  # its last version was deleted since the list was read
                found.append(self._view(engine))
        return found

    def _versions(self, engine: str | None, show_deleted: bool) -> list[engine_pb2.EngineVersion]:
        engines = self._store.list_engines() if engine is None else [engine]
        found = []
        for view in self._views(engines):
            found += [convert_proto.engine_version(manifest, view.aliases) for manifest in view.versions]
        for each in engines if show_deleted else []:
            for manifest, when in self._store.deleted_versions(each):
                found.append(convert_proto.engine_version(manifest, delete_time=when))
        if engine is not None and not found:
            self._store.list_versions(engine)  # says that there is no such engine
        return found


def _validated(request: pb.BuildEngineRequest, found: Estimate | None) -> operations_pb2.Operation:
    """The answer to `validate_only`: done at once, kept nowhere and so without a name, the estimate in its metadata."""
    metadata = pb.BuildMetadata(engine=f"engines/{request.engine_id}", labels=request.labels)
    if found is not None:
        metadata.estimate.CopyFrom(convert_proto.estimate_message(found))
    operation = operations_pb2.Operation(done=True)
    operation.metadata.Pack(metadata)
    operation.response.Pack(engine_pb2.EngineVersion())
    return operation


def _version_key(name: str) -> str:
    """Sorts by engine, then the newest version first."""
    engine, version = names.version_name(name)
    return f"{engine}/{(1 << 31) - version:010d}"


def _wanted_files(manifest: Manifest, targets: list[str]) -> list[File]:
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
    with path.open("rb") as stream:
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
