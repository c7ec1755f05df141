"""`EngineStore`: engine versions on shared storage. See layout.py for where things lie, publish.py for the laws."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine_store.aliases import LATEST, Alias, Aliases
from engine_store.cleanup import Cleaner, Collected, Recovered
from engine_store.digests import digest_file
from engine_store.disk import Disk, Failpoint, no_failpoint, store_errors
from engine_store.layout import MANIFEST, Layout
from engine_store.leases import Lease
from engine_store.manifest import SCHEMA, File, Manifest
from engine_store.names import check_file_path, check_id, check_version, is_id
from engine_store.owner import new_token
from engine_store.publish import Publisher
from engine_store.records import numbers_in
from engine_store.staging import Staging
from enginehouse.errors import DataLoss, FailedPrecondition, NotFound

MAX_MANIFEST_BYTES = 64 << 20
Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes of the whole."""


class Verified(NamedTuple):
    """What `verify` read: the number of files and their bytes."""

    files: int
    size_bytes: int


class Problem(NamedTuple):
    """A file that is not as the manifest says. `problem`: "missing", "size", "digest" or "unexpected"; `expected` and
    `found` are sizes or digests, empty where there is none."""

    path: str
    problem: str
    expected: str = ""
    found: str = ""


class Deleted(NamedTuple):
    """A deleted version whose files are still there, and when it was deleted (seconds since the epoch)."""

    manifest: Manifest
    delete_time: float


class _Schema(msgspec.Struct):
    schema: int


class EngineStore:
    """The store under `root`. Making the object touches nothing; a reader writes only leases.

    Args:
        root: the store's directory, shared between machines or local.
        failpoint: for tests: called with a label before each durable step.
        clock: seconds since the epoch.
    """

    def __init__(
        self, root: Path | str, *, failpoint: Failpoint = no_failpoint, clock: Callable[[], float] = time.time
    ) -> None:
        self.root = Path(root)
        self._clock = clock
        self._layout = Layout(self.root)
        self._disk = Disk(failpoint)
        self._publisher = Publisher(self._layout, self._disk)
        self._cleaner = Cleaner(self._layout, self._disk, self._publisher)
        self._aliases = Aliases(self._layout, self._disk, clock)

    # Writing

    def stage(self) -> Staging:
        """A fresh directory to write a version into; see `Staging`."""
        with store_errors():
            self._disk.make_dirs(self._layout.staging)
            path = self._layout.staging / new_token()
            path.mkdir()
        return Staging(path, self._publisher, self._disk, self.get)

    def delete_version(self, engine: str, version: int) -> Manifest:
        """Hides the version at once; `collect` removes its files later. The version's manifest.

        Raises: NotFound; FailedPrecondition while an alias points at it.
        """
        manifest = self.get(engine, version)
        self._refuse_aliased(engine, version)
        tombstone = self._layout.tombstone(engine, version)
        with store_errors():
            self._disk.make_dirs(tombstone.parent)
            self._disk.failpoint("tombstone")
            tombstone.touch()
            os.utime(tombstone, (self._clock(), self._clock()))
            self._disk.sync_dir(tombstone.parent)
        try:
            self._refuse_aliased(engine, version)  # one was set between the first look and the tombstone
        except FailedPrecondition:
            tombstone.unlink(missing_ok=True)
            raise
        return manifest

    def recover(self) -> Recovered:
        """Clears up after writers that died: completes decided versions, removes the rest. Safe at any time."""
        with store_errors():
            return self._cleaner.recover(self._clock())

    def collect(self) -> Collected:
        """Removes versions deleted two lease times ago that no reader holds, and unused blobs."""
        with store_errors():
            return self._cleaner.collect(self._clock())

    # Reading

    def list_engines(self) -> list[str]:
        """The ids of the engines that have a version, sorted."""
        try:
            names = sorted(entry.name for entry in self._layout.engines.iterdir() if is_id(entry.name))
        except FileNotFoundError:
            return []
        return [name for name in names if self.version_numbers(name)]

    def version_numbers(self, engine: str) -> list[int]:
        """The numbers of the engine's versions, the newest first; empty for an unknown engine."""
        check_id(engine, "engine_id")
        deleted = numbers_in(self._layout.tombstone(engine, 1).parent)
        return sorted(numbers_in(self._layout.versions(engine)) - deleted, reverse=True)

    def list_versions(self, engine: str) -> list[Manifest]:
        """The manifests of all versions, the newest first; NotFound for an engine without one."""
        found = []
        for number in self.version_numbers(engine):
            with contextlib.suppress(NotFound):  # deleted since the numbers were read
                found.append(self.get(engine, number))
        if not found:
            raise _no_engine(engine)
        return found

    def deleted_versions(self, engine: str) -> list[Deleted]:
        """The deleted versions whose files are still there, the newest first."""
        tombstones = self._layout.tombstone(check_id(engine, "engine_id"), 1).parent
        found = []
        for number in sorted(numbers_in(tombstones) & numbers_in(self._layout.versions(engine)), reverse=True):
            with contextlib.suppress(FileNotFoundError):  # removed since the numbers were read
                manifest = _read_manifest(self._layout.version(engine, number) / MANIFEST, engine, number)
                found.append(Deleted(manifest, (tombstones / str(number)).stat().st_mtime))
        return found

    def get(self, engine: str, version: int) -> Manifest:
        """The manifest of one version.

        Raises: NotFound; DataLoss for a damaged manifest; FailedPrecondition for a schema that is not ours.
        """
        check_id(engine, "engine_id")
        check_version(version)
        path = self._layout.version(engine, version) / MANIFEST
        try:
            if self._layout.tombstone(engine, version).exists():
                raise FileNotFoundError
            manifest = _read_manifest(path, engine, version)
        except FileNotFoundError:
            raise NotFound(
                f"Engine `{engine}` has no version {version}; list its versions to see what there is.",
                reason="ENGINE_VERSION_NOT_FOUND",
                metadata={"engine": engine, "version": version},
            ) from None
        if (manifest.name, manifest.version) != (engine, version):
            raise _damaged(engine, version, "names another version")
        return manifest

    def resolve(self, engine: str, ref: str = LATEST) -> Manifest:
        """The version that `ref` means: "latest" (the highest number), a number, or an alias."""
        check_id(engine, "engine_id")
        if ref == LATEST:
            numbers = self.version_numbers(engine)
            if not numbers:
                raise _no_engine(engine)
            return self.get(engine, numbers[0])
        if ref.isascii() and ref.isdigit() and len(ref) <= 10:
            return self.get(engine, int(ref))
        return self.get(engine, self._aliases.get(engine, ref).version)

    def find(self, engine: str, build_key: str) -> Manifest | None:
        """The newest version of the engine with this build key; None when there is none."""
        check_id(engine, "engine_id")
        live = set(self.version_numbers(engine))
        for record in self._publisher.keys(engine, build_key).newest_first():
            if record.value.version in live:
                return self.get(engine, record.value.version)
        return None

    def version_path(self, engine: str, version: int) -> Path:
        """The directory of a version that exists."""
        self.get(engine, version)
        return self._layout.version(engine, version)

    def file_path(self, manifest: Manifest, file: File) -> Path:
        """The path of one of the manifest's files; DataLoss when it leads out of the version or is no plain file."""
        folder = self._layout.version(check_id(manifest.name, "engine_id"), check_version(manifest.version))
        path = folder / check_file_path(file.path)
        if path.is_symlink() or not path.is_file():
            raise _bad_file(manifest, file, "is missing or no plain file")
        if not path.resolve().is_relative_to(folder.resolve()):
            raise _bad_file(manifest, file, "leads out of the version")
        return path

    def inspect(self, engine: str, version: int, progress: Progress | None = None) -> list[Problem]:
        """Reads every file again; what is not as the manifest says, files that it does not list included.

        Args:
            progress: called at each 64 MiB; what it raises ends the reading.
        """
        manifest = self.get(engine, version)
        folder = self._layout.version(engine, version)
        total, done, problems = sum(file.size_bytes for file in manifest.files), 0, []

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, total)

        for file in manifest.files:
            if (problem := self._check(manifest, file, advance)) is not None:
                problems.append(problem)
        listed = {MANIFEST, *(file.path for file in manifest.files)}
        there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
        return problems + [Problem(path, "unexpected") for path in sorted(there - listed)]

    def verify(self, engine: str, version: int, progress: Progress | None = None) -> Verified:
        """Reads every file again. DataLoss names the first that is not as the manifest says."""
        for problem in self.inspect(engine, version, progress):
            raise DataLoss(
                f"`{problem.path}` of `{engine}` version {version} is damaged ({problem.problem}); "
                "delete the version and build it again.",
                reason="FILE_DAMAGED",
                metadata={"engine": engine, "version": version, "file": problem.path, "problem": problem.problem},
            )
        manifest = self.get(engine, version)
        return Verified(len(manifest.files), sum(file.size_bytes for file in manifest.files))

    def _check(self, manifest: Manifest, file: File, advance: Callable[[int], None]) -> Problem | None:
        check_file_path(file.path)
        try:
            path = self.file_path(manifest, file)
        except DataLoss:
            return Problem(file.path, "missing", file.digest)
        found = digest_file(path, progress=advance)
        if found.size_bytes != file.size_bytes:
            return Problem(file.path, "size", str(file.size_bytes), str(found.size_bytes))
        return None if found.digest == file.digest else Problem(file.path, "digest", file.digest, found.digest)

    def lease(self, engine: str, version: int) -> Lease:
        """Holds a version for reading; NotFound when it does not exist. The holder renews and releases it."""
        check_id(engine, "engine_id")
        lease = Lease(self._layout.lease(engine, check_version(version), new_token()), self._clock)
        try:
            self.get(engine, version)
        except Exception:
            lease.release()
            raise
        return lease

    # Aliases

    def get_alias(self, engine: str, alias: str) -> Alias:
        """The alias; NotFound when there is none."""
        return self._aliases.get(check_id(engine, "engine_id"), alias)

    def list_aliases(self, engine: str) -> list[Alias]:
        """The engine's aliases by name."""
        return self._aliases.list(check_id(engine, "engine_id"))

    def set_alias(self, engine: str, alias: str, version: int, etag: str | None = None) -> Alias:
        """Points the alias at a version. `etag`: only if the alias still has it; "0": only if it does not exist.

        Raises: NotFound for the version; Aborted (ETAG_MISMATCH); InvalidArgument for a bad or reserved name.
        """
        self.get(engine, version)
        done = self._aliases.put(engine, alias, version, etag)
        try:
            self.get(engine, version)
        except NotFound:  # deleted between the first look and the record; see delete_version
            self._aliases.put(engine, alias, 0, done.etag)
            raise
        return done

    def delete_alias(self, engine: str, alias: str, etag: str | None = None) -> None:
        """Deletes the alias. Raises NotFound; Aborted when the etag does not match."""
        self.get_alias(engine, alias)
        self._aliases.put(engine, alias, 0, etag)

    def _refuse_aliased(self, engine: str, version: int) -> None:
        names = [alias.alias for alias in self._aliases.list(engine) if alias.version == version]
        if names:
            raise FailedPrecondition(
                f"Version {version} of `{engine}` has the alias {', '.join(names)}; move or delete it first.",
                reason="VERSION_ALIASED",
                metadata={"engine": engine, "version": version, "aliases": ",".join(names)},
            )


def _read_manifest(path: Path, engine: str, version: int) -> Manifest:
    try:
        if path.is_symlink() or path.stat().st_size > MAX_MANIFEST_BYTES:
            raise _damaged(engine, version, "is no plain file of a sane size")
        data = path.read_bytes()
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema != SCHEMA:
            raise FailedPrecondition(
                f"Version {version} of `{engine}` has manifest schema {schema}, this program reads {SCHEMA}; "
                "use matching versions of the builder and the server, or build the engine again.",
                reason="ENGINE_SCHEMA",
                metadata={"engine": engine, "version": version, "schema": schema, "supported": SCHEMA},
            )
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise _damaged(engine, version, "cannot be read") from error


def _no_engine(engine: str) -> NotFound:
    return NotFound(
        f"There is no engine `{engine}`; list engines to see what there is, or build it.",
        reason="ENGINE_NOT_FOUND",
        metadata={"engine": engine},
    )


def _damaged(engine: str, version: int, what: str) -> DataLoss:
    return DataLoss(
        f"The manifest of `{engine}` version {version} {what}; delete the version and build it again.",
        reason="MANIFEST_DAMAGED",
        metadata={"engine": engine, "version": version},
    )


def _bad_file(manifest: Manifest, file: File, what: str) -> DataLoss:
    return DataLoss(
        f"`{file.path}` of `{manifest.name}` version {manifest.version} {what}; delete the version and build it again.",
        reason="FILE_DAMAGED",
        metadata={"engine": manifest.name, "version": manifest.version, "file": file.path},
    )
