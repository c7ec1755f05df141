"""Reading manifests: which versions an engine has, and what each says of itself."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine_store.disk import store_errors
from engine_store.layout import MANIFEST, Layout
from engine_store.manifest import SCHEMA, UNREADABLE, File, Limits, Manifest, Source
from engine_store.names import VersionRef, check_file_path, check_id, check_version
from engine_store.records import numbers_in
from enginehouse.errors import DataLoss, FailedPrecondition, NotFound

MAX_MANIFEST_BYTES = 64 << 20


class Deleted(NamedTuple):
    """A deleted version whose files are still there, and when it was deleted (seconds since the epoch)."""

    manifest: Manifest
    delete_time: float


class _Schema(msgspec.Struct):
    schema: int


class Reader:
    """The reading of one store's versions."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def engines(self) -> list[str]:
        """The ids of the engines that have a version, sorted. Reads no manifest."""
        return [name for name in self._layout.engine_names() if self.numbers(name)]

    def numbers(self, engine: str) -> list[int]:
        """The numbers of the engine's versions, the newest first. Reads no manifest."""
        check_id(engine, "engine_id")
        deleted = numbers_in(self._layout.tombstones(engine))
        return sorted(numbers_in(self._layout.versions(engine)) - deleted, reverse=True)

    def deleted_numbers(self, engine: str) -> list[int]:
        """The numbers of the deleted versions whose files are still there, the newest first. Reads no manifest."""
        check_id(engine, "engine_id")
        deleted = numbers_in(self._layout.tombstones(engine))
        return sorted(numbers_in(self._layout.versions(engine)) & deleted, reverse=True)

    def get(self, engine: str, version: int) -> Manifest:
        """The manifest of a version that is not deleted."""
        check_id(engine, "engine_id")
        check_version(version)
        with store_errors():
            try:
                if self._layout.tombstone(engine, version).exists():
                    raise FileNotFoundError
                return self._read(VersionRef(engine, version))
            except FileNotFoundError:
                raise _no_version(engine, version) from None

    def latest(self, engine: str) -> Manifest:
        """The manifest of the newest version; NotFound for an engine without one."""
        for number in self.numbers(engine):
            with contextlib.suppress(NotFound):  # deleted since the numbers were read
                return self.get(engine, number)
        raise no_engine(engine)

    def deleted(self, engine: str, version: int) -> Deleted | None:
        """A deleted version whose files are still there; None when they are not, or when it is not deleted."""
        try:
            when = self._layout.tombstone(engine, version).stat().st_mtime
            self._layout.version(engine, version).stat()
        except FileNotFoundError:
            return None
        return Deleted(self.described(VersionRef(engine, version)), when)

    def described(self, version: VersionRef) -> Manifest:
        """The manifest of a version, deleted or not. One that cannot be read has nothing but the version's name."""
        try:
            return self._read(version)
        except (FileNotFoundError, DataLoss, FailedPrecondition):
            return _stand_in(version)

    def file_path(self, manifest: Manifest, file: File) -> Path:
        """The path of one of the manifest's files; DataLoss when it leads out of the version or is no plain file."""
        folder = self._layout.version(check_id(manifest.name, "engine_id"), check_version(manifest.version))
        path = folder / check_file_path(file.path)
        if path.is_symlink() or not path.is_file():
            raise _bad_file(manifest, file, "is missing or no plain file")
        if not path.resolve().is_relative_to(folder.resolve()):
            raise _bad_file(manifest, file, "leads out of the version")
        return path

    def _read(self, version: VersionRef) -> Manifest:
        try:
            manifest = _decode(manifest_bytes(self._layout, version), version)
        except UNREADABLE as error:
            raise _damaged(version, "cannot be read") from error
        if (manifest.name, manifest.version) != version:
            raise _damaged(version, "names another version")
        return manifest


def manifest_bytes(layout: Layout, version: VersionRef) -> bytes:
    """`engine.json` as it lies there; DataLoss when it is no plain file of a sane size."""
    path = layout.version(*version) / MANIFEST
    if path.is_symlink() or path.stat().st_size > MAX_MANIFEST_BYTES:
        raise _damaged(version, "is no plain file of a sane size")
    return path.read_bytes()


def no_engine(engine: str) -> NotFound:
    """There is no version of this engine."""
    return NotFound(
        f"There is no engine `{engine}`; list engines to see what there is, or build it.",
        reason="ENGINE_NOT_FOUND",
        metadata={"engine": engine},
    )


def _no_version(engine: str, version: int) -> NotFound:
    return NotFound(
        f"Engine `{engine}` has no version {version}; list its versions to see what there is.",
        reason="ENGINE_VERSION_NOT_FOUND",
        metadata={"engine": engine, "version": version},
    )


def _decode(data: bytes, version: VersionRef) -> Manifest:
    schema = msgspec.json.decode(data, type=_Schema).schema
    if schema != SCHEMA:
        raise FailedPrecondition(
            f"Version {version.version} of `{version.engine}` has manifest schema {schema}, this program reads "
            f"{SCHEMA}; use matching versions of the builder and the server, or build the engine again.",
            reason="ENGINE_SCHEMA",
            metadata={**version._asdict(), "schema": schema, "supported": SCHEMA},
        )
    return msgspec.json.decode(data, type=Manifest)


def _stand_in(version: VersionRef) -> Manifest:
    return Manifest(
        schema=SCHEMA,
        name=version.engine,
        version=version.version,
        build_key="",
        create_time="",
        architecture="",
        opset=0,
        vocab_size=0,
        eos_token_ids=(),
        source=Source(kind="dummy", location=""),
        targets=(),
        limits=Limits(max_batch_size=0, max_num_tokens=0, max_seq_len=0),
    )


def _damaged(version: VersionRef, what: str) -> DataLoss:
    return DataLoss(
        f"The manifest of `{version.engine}` version {version.version} {what}; "
        "build it again with `force`, then delete this version.",
        reason="MANIFEST_DAMAGED",
        metadata=version._asdict(),
    )


def _bad_file(manifest: Manifest, file: File, what: str) -> DataLoss:
    return DataLoss(
        f"`{file.path}` of `{manifest.name}` version {manifest.version} {what}; "
        "build it again with `force`, then delete this version.",
        reason="FILE_DAMAGED",
        metadata={"engine": manifest.name, "version": manifest.version, "file": file.path},
    )
