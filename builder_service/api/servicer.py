"""BuilderService: each method decodes, calls the supervisor or the store, and encodes."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from builder_service.api import convert_proto, names
from builder_service.api.files import Files
from builder_service.api.listing import Listing
from builder_service.api.operations import BuilderOperations, first
from builder_service.api.requests import Site, only_validates, priority, read_build
from builder_service.api.validator import Validated, Validator
from builder_service.collector import Collector
from builder_service.estimate import estimate
from builder_service.queue.events import Finished
from builder_service.queue.sharing import source_stamp
from builder_service.queue.supervisor import Supervisor
from engine_store import EngineStore, Manifest
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2_grpc, engine_pb2
from enginehouse.errors import InvalidArgument, NotFound, Unavailable
from service_kit.operations import Handle
from service_kit.pagination import paginate, parse


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
        validator: Validator,
        collector: Collector,
        site: Site,
        draining: asyncio.Event,
    ) -> None:
        self._supervisor, self._store, self._operations = supervisor, store, operations
        self._validator, self._collector, self._site, self._draining = validator, collector, site, draining
        self._listing, self._files = Listing(store), Files(store)

    # Builds

    async def BuildEngine(self, request: pb.BuildEngineRequest, context: Any) -> operations_pb2.Operation:
        spec = await asyncio.to_thread(read_build, request, self._site)
        if only_validates(request):
            return await self._validated(request, await self._validator.check(spec))
        if request.request_id:  # however it is spelt
            request.request_id = str(uuid.UUID(request.request_id))
        job = self._supervisor.submit(
            spec,
            request.SerializeToString(deterministic=True),
            request.request_id,
            priority=priority(request),
            estimate=await asyncio.to_thread(estimate, spec),
            stamp=await asyncio.to_thread(source_stamp, spec),
        )
        return await self._operations.encode(job)

    async def WatchBuild(self, request: pb.WatchBuildRequest, context: Any) -> AsyncIterator[pb.BuildEvent]:
        sequence = request.after_sequence
        if sequence < 0:
            raise InvalidArgument(
                "`after_sequence` is negative; give 0 for all events.", metadata={"field": "after_sequence"}
            )
        if sequence > (last := self._supervisor.jobs.get(request.operation).state.last_sequence):
            raise InvalidArgument(  # it would wait for ever where a builder lost its queue
                f"`after_sequence` is {sequence}, and this build has {last} events so far; give what the last event "
                "said, or 0 for all events.",
                reason="SEQUENCE_AHEAD",
                metadata={"field": "after_sequence", "value": sequence, "last_sequence": last},
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
        return await asyncio.to_thread(self._listing.engine, names.engine_name(request.name))

    async def ListEngines(self, request: pb.ListEnginesRequest, context: Any) -> pb.ListEnginesResponse:
        page = parse(request.page_size, request.page_token, "engines")
        engines, token = await asyncio.to_thread(self._listing.engines, page, "engines")
        return pb.ListEnginesResponse(engines=engines, next_page_token=token)

    async def GetEngineVersion(self, request: pb.GetEngineVersionRequest, context: Any) -> engine_pb2.EngineVersion:
        manifest = await asyncio.to_thread(self._store.resolve, *names.version_ref(request.name))
        return await asyncio.to_thread(self._listing.version, manifest)

    async def ListEngineVersions(
        self, request: pb.ListEngineVersionsRequest, context: Any
    ) -> pb.ListEngineVersionsResponse:
        engine, scope = names.parent_engine(request.parent), f"{request.parent}/versions {request.show_deleted}"
        page = parse(request.page_size, request.page_token, scope)
        found, token = await asyncio.to_thread(self._listing.versions, engine, request.show_deleted, page, scope)
        return pb.ListEngineVersionsResponse(engine_versions=found, next_page_token=token)

    async def DeleteEngineVersion(
        self, request: pb.DeleteEngineVersionRequest, context: Any
    ) -> engine_pb2.EngineVersion:
        manifest = await asyncio.to_thread(self._store.delete_version, *names.version_name(request.name))
        return convert_proto.deleted_version(manifest, time.time())

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

    async def DownloadEngineVersion(self, request: pb.DownloadEngineVersionRequest, context: Any) -> None:
        # A coroutine that writes, not a generator: when the client goes away it is cancelled here and now.
        manifest = await asyncio.to_thread(self._store.resolve, *names.version_ref(request.name))
        await self._files.send(manifest, request.targets, context.write)

    async def CollectGarbage(self, request: pb.CollectGarbageRequest, context: Any) -> pb.CollectGarbageResponse:
        return convert_proto.collected(await self._collector.collect(request.validate_only))

    async def _inspect(
        self, manifest: Manifest, metadata: pb.VerifyEngineVersionMetadata, handle: Handle
    ) -> pb.VerifyEngineVersionResponse:
        loop = asyncio.get_running_loop()

        def progress(done: int, total: int) -> None:
            metadata.bytes_done = done
            loop.call_soon_threadsafe(handle.update, metadata)

        problems = await self._files.inspect(manifest, progress)
        return pb.VerifyEngineVersionResponse(
            name=metadata.name,
            intact=not problems,
            problems=map(convert_proto.problem, problems),
            files_checked=len(manifest.files),
            bytes_checked=metadata.bytes_total,
        )

    async def _validated(self, request: pb.BuildEngineRequest, found: Validated) -> operations_pb2.Operation:
        """The answer to `validate_only`: done, kept nowhere and so without a name. Its metadata has the estimate, its
        response the version that has the build key."""
        metadata = pb.BuildMetadata(
            engine=f"engines/{request.engine_id}",
            labels=request.labels,
            build_key=found.build_key,
            reused=bool(found.existing) and not request.force,
            message="\n".join(found.notes),
        )
        if found.estimate is not None:
            metadata.estimate.CopyFrom(convert_proto.estimate_message(found.estimate))
        version = engine_pb2.EngineVersion()
        with contextlib.suppress(NotFound):  # deleted since the check
            if found.existing:
                manifest = await asyncio.to_thread(self._store.get, request.engine_id, found.existing)
                version = await asyncio.to_thread(self._listing.version, manifest)
        operation = operations_pb2.Operation(done=True)
        operation.metadata.Pack(metadata)
        operation.response.Pack(version)
        return operation
