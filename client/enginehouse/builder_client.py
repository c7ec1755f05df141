"""The builder daemon from Python: build engines, and look after what is in the store."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.longrunning import operations_pb2

from enginehouse._calls import wait_operation
from enginehouse._client import DaemonClient
from enginehouse._convert import from_proto
from enginehouse._download import clear, empty_directory, write_files
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2, builder_pb2_grpc
from enginehouse.build import BuildHandle, BuildOptions
from enginehouse.connection import BUILDER_TARGET, Endpoint, TlsConfig
from enginehouse.engine_types import Alias, Engine, EngineVersion, GarbageReport, VerifyResult
from enginehouse.errors import DataLoss, from_status
from enginehouse.names import EngineRef, parse_engine

VALIDATION_TIMEOUT_S = 330.0
"""The builder reads the whole checkpoint for its digest, and gives up by itself after five minutes."""
COLLECTION_TIMEOUT_S = 600.0


class BuilderClient(DaemonClient):
    """A builder daemon.

    Args:
        target: HOST:PORT of the daemon.
        tls: TLS settings; None speaks plain text.
        token: sent as a bearer token.
        timeout: seconds for each call that answers at once.
    """

    def __init__(
        self,
        target: str = BUILDER_TARGET,
        *,
        tls: TlsConfig | None = None,
        token: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(Endpoint(target=target, daemon="builder", tls=tls, token=token), timeout)
        self._stub = builder_pb2_grpc.BuilderServiceStub(self._calls.channel)

    # Builds

    def build(self, source: str | Path, engine_id: str, **options: Any) -> BuildHandle:
        """Starts a build and returns at once. A version with the same build key is found instead of built again.

        Args:
            source: a Hugging Face directory or GGUF file on the builder's machine, a hub id `org/model`, or a GGUF
                file of a hub repository, `org/repo:file.gguf`.
            engine_id: the engine to add a version to.
            options: the fields of BuildOptions.
        """
        request = BuildOptions(**options).to_proto(source, engine_id)
        timeout = VALIDATION_TIMEOUT_S if request.validate_only or request.build_config.dry_run else None
        return BuildHandle(self._calls, self._calls.unary(self._stub.BuildEngine, request, timeout))

    def build_handle(self, name: str) -> BuildHandle:
        """The build with this operation name. Raises NotFound."""
        request = operations_pb2.GetOperationRequest(name=name)
        return BuildHandle(self._calls, self._calls.unary(self._calls.operations.GetOperation, request))

    def builds(self, page_size: int = 0) -> Iterator[BuildHandle]:
        """The builds that the daemon remembers, the newest first. `page_size`: builds for each call; 0: the daemon's
        choice."""
        request = operations_pb2.ListOperationsRequest(page_size=page_size)
        listing = self._calls.pages(self._calls.operations.ListOperations, request)
        for page in listing:
            for operation in page.operations:
                if operation.metadata.Is(builder_pb2.BuildMetadata.DESCRIPTOR):
                    yield BuildHandle(self._calls, operation)

    # Engines

    def engines(self) -> Iterator[Engine]:
        """All engines by name."""
        for page in self._calls.pages(self._stub.ListEngines, builder_pb2.ListEnginesRequest()):
            yield from (from_proto(Engine, item) for item in page.engines)

    def engine(self, engine: str) -> Engine:
        """One engine. Raises NotFound."""
        request = builder_pb2.GetEngineRequest(name=f"engines/{parse_engine(engine).engine}")
        return from_proto(Engine, self._calls.unary(self._stub.GetEngine, request))

    def versions(self, engine: str = "-", *, show_deleted: bool = False) -> Iterator[EngineVersion]:
        """An engine's versions, the newest first; "-" for those of all engines. `show_deleted`: those too that were
        deleted and whose files are still there."""
        parent = "engines/-" if engine == "-" else f"engines/{parse_engine(engine).engine}"
        request = builder_pb2.ListEngineVersionsRequest(parent=parent, show_deleted=show_deleted)
        for page in self._calls.pages(self._stub.ListEngineVersions, request):
            yield from (from_proto(EngineVersion, item) for item in page.engine_versions)

    def version(self, ref: str) -> EngineVersion:
        """One version: `name` (the latest), `name@3` or `name@alias`. Raises NotFound."""
        request = builder_pb2.GetEngineVersionRequest(name=parse_engine(ref).resource)
        return from_proto(EngineVersion, self._calls.unary(self._stub.GetEngineVersion, request))

    def delete_version(self, ref: str) -> EngineVersion:
        """Deletes one version, `name@3`. Raises FailedPrecondition while an alias points at it."""
        request = builder_pb2.DeleteEngineVersionRequest(name=self._numbered(ref).resource)
        return from_proto(EngineVersion, self._calls.unary(self._stub.DeleteEngineVersion, request))

    def verify(self, ref: str, timeout: float | None = None) -> VerifyResult:
        """Reads every file of a version again and compares its digest. Waits for the end."""
        request = builder_pb2.VerifyEngineVersionRequest(
            name=self._numbered(ref).resource, request_id=str(uuid.uuid4())
        )
        operation = self._calls.unary(self._stub.VerifyEngineVersion, request)
        operation = wait_operation(self._calls, operation, timeout)
        if operation.HasField("error"):
            raise from_status(operation.error)
        response = builder_pb2.VerifyEngineVersionResponse()
        operation.response.Unpack(response)
        return from_proto(VerifyResult, response)

    def download(
        self,
        ref: str,
        directory: str | Path,
        *,
        targets: Sequence[str] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> EngineVersion:
        """Copies a version's files into a directory, which is made if need be and must be empty: files of two versions
        are no engine. A file appears there once it is whole and its digest is right; nothing is written outside of the
        directory. What fails leaves nothing there.

        Args:
            ref: `name`, `name@3` or `name@alias`.
            targets: the targets whose files are wanted; empty for all.
            progress: called with bytes done and bytes in all.

        Raises:
            DataLoss: what arrived is not what was promised.
            FailedPrecondition: DIRECTORY_NOT_EMPTY.
        """
        directory = empty_directory(Path(directory))
        version = self.version(ref)
        request = builder_pb2.DownloadEngineVersionRequest(name=version.name, targets=targets)
        with self._calls.endpoint.errors():
            chunks = self._stub.DownloadEngineVersion(request, metadata=self._calls.endpoint.metadata)
            try:
                arrived = write_files(chunks, directory, lambda done: progress and progress(done, version.size_bytes))
                _expect_all(version, arrived, targets)
            except BaseException:
                clear(directory)
                raise
            finally:
                chunks.cancel()  # after an error here the daemon need not send the rest
        return version

    # Aliases

    def set_alias(self, engine: str, alias: str, version: int, etag: str = "") -> Alias:
        """Points an alias at a version. With an etag that no longer holds it raises Aborted."""
        name = f"engines/{parse_engine(engine).engine}/aliases/{alias}"
        request = builder_pb2.SetAliasRequest(name=name, version=version, etag=etag)
        return from_proto(Alias, self._calls.unary(self._stub.SetAlias, request))

    def delete_alias(self, engine: str, alias: str, etag: str = "") -> None:
        """Deletes an alias. With an etag that no longer holds it raises Aborted."""
        name = f"engines/{parse_engine(engine).engine}/aliases/{alias}"
        self._calls.unary(self._stub.DeleteAlias, builder_pb2.DeleteAliasRequest(name=name, etag=etag))

    def aliases(self, engine: str) -> Iterator[Alias]:
        """An engine's aliases by name."""
        request = builder_pb2.ListAliasesRequest(parent=f"engines/{parse_engine(engine).engine}")
        for page in self._calls.pages(self._stub.ListAliases, request):
            yield from (from_proto(Alias, item) for item in page.aliases)

    # The rest

    def collect_garbage(self, *, validate_only: bool = False) -> GarbageReport:
        """Removes deleted versions that nobody reads and unused files, and brings the store below its quota.

        Args:
            validate_only: only tell what would be removed.
        """
        request = builder_pb2.CollectGarbageRequest(validate_only=validate_only)
        return from_proto(GarbageReport, self._calls.unary(self._stub.CollectGarbage, request, COLLECTION_TIMEOUT_S))

    def _numbered(self, ref: str) -> EngineRef:
        """The version's number where an alias or none was given."""
        parsed = parse_engine(ref)
        return parsed if parsed.version is not None else EngineRef(parsed.engine, self.version(ref).number)


def _expect_all(version: EngineVersion, arrived: Mapping[str, str], targets: Sequence[str]) -> None:
    """All files that the version lists came, as it lists them; with `targets` some may be left out."""
    for file in version.files:
        if arrived.get(file.path, file.digest if targets else "") != file.digest:
            raise DataLoss(
                f"{file.path} of {version.name} did not come, or is another than the version lists; try again.",
                reason="INCOMPLETE_DOWNLOAD",
                metadata={"version": version.name, "path": file.path},
            )
