"""`EngineStore`: engine versions on shared storage. See layout.py for where things lie, publish.py for the laws."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from engine_store.aliases import LATEST, Alias, Aliases, Change
from engine_store.cleanup import Collected, Collector
from engine_store.deletion import Deleter
from engine_store.disk import Disk, Failpoint, no_failpoint, store_errors
from engine_store.inspection import Inspector, Progress, damaged
from engine_store.inspection import Problem as Problem
from engine_store.layout import Layout
from engine_store.leases import Lease
from engine_store.manifest import File, Manifest
from engine_store.names import VersionRef, check_id, check_version
from engine_store.owner import new_token
from engine_store.publish import Publisher
from engine_store.quota import Usage
from engine_store.reading import Deleted, Reader, no_engine
from engine_store.recovery import Recovered, Recovery
from engine_store.staging import Staging
from enginehouse.errors import Aborted, DataLoss, FailedPrecondition, NotFound


class Verified(NamedTuple):
    """What `verify` read: the number of files and their bytes."""

    files: int
    size_bytes: int


class EngineStore:
    """The store under `root`. Making the object touches nothing; a reader writes only leases.

    Args:
        root: the store's directory, shared between machines or local.
        failpoint: for tests: called with a label before each durable step.
        clock: seconds since the epoch.
        quota_bytes: the most bytes that the store may hold; 0 for no bound. See quota.py for what gives way.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        failpoint: Failpoint = no_failpoint,
        clock: Callable[[], float] = time.time,
        quota_bytes: int = 0,
    ) -> None:
        self.root = Path(root)
        self._clock = clock
        self._layout = Layout(self.root)
        self._disk = Disk(self.root, failpoint)
        self._reader = Reader(self._layout)
        self._publisher = Publisher(self._layout, self._disk)
        self._inspector = Inspector(self._layout, self._reader, self._publisher)
        self._aliases = Aliases(self._layout, self._disk, clock)
        self._deleter = Deleter(self._layout, self._disk, self._aliases, clock)
        self._collector = Collector(self._layout, self._disk, self._aliases, clock, quota_bytes)
        self._recovery = Recovery(self._layout, self._disk, self._publisher, self._deleter)

    # Writing

    def stage(self) -> Staging:
        """A fresh directory to write a version into; see `Staging`."""
        with store_errors():
            self._disk.make_dirs(self._layout.staging, "stage.folder")
            path = self._layout.staging / new_token()
            self._disk.make_dir(path, "stage.tree.mkdir")
        return Staging(path, self._publisher, self._disk, self.get)

    def published_by(self, engine: str, build_key: str, owner_token: str) -> int | None:
        """The version that the process of `owner_token` published under this key, if it did and the version is there.

        A version that the process had decided on before it died is completed on the way."""
        with store_errors():
            return self._publisher.published_by(check_id(engine, "engine_id"), build_key, owner_token)

    def delete_version(self, engine: str, version: int) -> Manifest:
        """Hides the version at once; `collect` removes its files later. The version's manifest: where it cannot be
        read, one with nothing but the version's name.

        Raises: NotFound; FailedPrecondition while an alias points at it.
        """
        with contextlib.suppress(DataLoss, FailedPrecondition):  # damaged, or of another schema: it can go all the same
            self.get(engine, version)
        with store_errors():
            if not self._deleter.delete(VersionRef(engine, version)):
                self.get(engine, version)  # says that somebody else deleted it
        return self._described(VersionRef(engine, version))

    def recover(self, gone: Collection[str] = ()) -> Recovered:
        """Clears up after processes that died: completes decided versions and begun deletions, removes what else is
        staged, claimed or leased. Safe at any time.

        Args:
            gone: owner tokens of processes that are known to be dead though they ran before a reboot or in another
                container. What others of the kind left counts as dead after a day.
        """
        with store_errors():
            return self._recovery.recover(self._clock(), gone)

    def collect(self, validate_only: bool = False) -> Collected:
        """Removes versions deleted two lease times ago that no reader holds, and unused blobs. Above the quota it
        also deletes versions, as far as the quota's law lets it; their files go two lease times later.

        Args:
            validate_only: only tell what would be done.
        """
        with store_errors():
            return self._collector.collect(validate_only)

    # Room

    def usage(self) -> Usage:
        """The bytes of all files in the store, each inode once, and the quota. Looks at every file's size."""
        return self._collector.usage()

    def make_room(self, needed_bytes: int) -> list[Manifest]:
        """Deletes least recently used versions until `needed_bytes` more fit into the quota, counting deleted ones as
        gone unless a reader holds them; their manifests. Nothing is deleted where there is no quota.

        Raises: ResourceExhausted (STORE_QUOTA) when what no alias names and no reader holds is not enough; nothing is
            deleted then.
        """
        with store_errors():
            return [self._described(version) for version in self._collector.make_room(needed_bytes)]

    def last_use(self, engine: str, version: int) -> float | None:
        """When a reader last held the version, in seconds since the epoch; None for never."""
        path = self._layout.last_use(check_id(engine, "engine_id"), check_version(version))
        try:
            return path.stat().st_mtime
        except FileNotFoundError:
            return None

    # Reading

    def list_engines(self) -> list[str]:
        """The ids of the engines that have a version, sorted. Reads no manifest."""
        return self._reader.engines()

    def version_numbers(self, engine: str) -> list[int]:
        """The numbers of the engine's versions, the newest first; empty for an unknown engine. Reads no manifest."""
        return self._reader.numbers(engine)

    def list_versions(self, engine: str) -> list[Manifest]:
        """The manifests of all versions, the newest first; NotFound for an engine without one."""
        found = []
        for number in self.version_numbers(engine):
            with contextlib.suppress(NotFound):  # deleted since the numbers were read
                found.append(self.get(engine, number))
        if not found:
            raise no_engine(engine)
        return found

    def deleted_numbers(self, engine: str) -> list[int]:
        """The numbers of the deleted versions whose files are still there, the newest first. Reads no manifest."""
        return self._reader.deleted_numbers(engine)

    def get_deleted(self, engine: str, version: int) -> Deleted | None:
        """A deleted version whose files are still there; None when there is none."""
        return self._reader.deleted(check_id(engine, "engine_id"), check_version(version))

    def deleted_versions(self, engine: str) -> list[Deleted]:
        """The deleted versions whose files are still there, the newest first."""
        found = (self.get_deleted(engine, number) for number in self.deleted_numbers(engine))
        return [deleted for deleted in found if deleted is not None]

    def get(self, engine: str, version: int) -> Manifest:
        """The manifest of one version.

        Raises: NotFound; DataLoss for a damaged manifest; FailedPrecondition for a schema that is not ours.
        """
        return self._reader.get(engine, version)

    def resolve(self, engine: str, ref: str = LATEST) -> Manifest:
        """The version that `ref` means: "latest" (the highest number), a number, or an alias."""
        check_id(engine, "engine_id")
        if ref == LATEST:
            return self._reader.latest(engine)
        if ref.isascii() and ref.isdigit() and len(ref) <= 10:
            return self.get(engine, int(ref))
        return self.get(engine, self._aliases.get(engine, ref).version)

    def find(self, engine: str, build_key: str) -> Manifest | None:
        """The newest version of the engine with this build key whose manifest is as it was published; else None."""
        check_id(engine, "engine_id")
        for record in self._publisher.keys(engine, build_key).newest_first():
            if self._publisher.intact(engine, record.value):
                with contextlib.suppress(NotFound):
                    return self.get(engine, record.value.version)
        return None

    def version_path(self, engine: str, version: int) -> Path:
        """The directory of a version that exists."""
        self.get(engine, version)
        return self._layout.version(engine, version)

    def file_path(self, manifest: Manifest, file: File) -> Path:
        """The path of one of the manifest's files; DataLoss when it leads out of the version or is no plain file."""
        return self._reader.file_path(manifest, file)

    def check_manifest(self, manifest: Manifest) -> Problem | None:
        """What is wrong with the version's engine.json, by the digest that was recorded when it was published."""
        return self._inspector.manifest(manifest)

    def unexpected_files(self, manifest: Manifest) -> list[str]:
        """The paths of files that lie in the version and are none of the manifest's, sorted."""
        return self._inspector.unexpected(manifest)

    def inspect(self, engine: str, version: int, progress: Progress | None = None) -> list[Problem]:
        """Reads every file again; what is not as it was published, files that the manifest does not list included.

        Args:
            progress: called at each 64 MiB; what it raises ends the reading.
        """
        with store_errors():
            return self._inspector.inspect(self.get(engine, version), progress)

    def verify(self, engine: str, version: int, progress: Progress | None = None) -> Verified:
        """Reads every file again. DataLoss names the first that is not as it was published."""
        manifest = self.get(engine, version)
        for problem in self.inspect(engine, version, progress):
            raise damaged(manifest, problem)
        return Verified(len(manifest.files), sum(file.size_bytes for file in manifest.files))

    def lease(self, engine: str, version: int) -> Lease:
        """Holds a version for reading; NotFound when it does not exist. The holder renews and releases it."""
        ref = VersionRef(check_id(engine, "engine_id"), check_version(version))
        with store_errors():
            lease = Lease(self._layout, self._disk, ref, self._clock)
            try:
                self.get(engine, version)
                lease.renew()
            except Exception:
                lease.withdraw()
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
        except NotFound:  # deleted between the first look and the record; see deletion.py
            self._put_back(done)
            raise
        return done.alias

    def delete_alias(self, engine: str, alias: str, etag: str | None = None) -> None:
        """Deletes the alias. Raises NotFound; Aborted when the etag does not match."""
        self.get_alias(engine, alias)
        self._aliases.put(engine, alias, 0, etag)

    def _put_back(self, change: Change) -> None:
        """The alias names again what it named before: nothing where that version was deleted meanwhile, too. One that
        somebody else has moved since stays."""
        done, before = change
        with contextlib.suppress(Aborted):
            back = self._aliases.put(done.engine, done.alias, before, done.etag).alias
            if before and before not in self.version_numbers(done.engine):
                self._aliases.put(done.engine, done.alias, 0, back.etag)

    def _described(self, version: VersionRef) -> Manifest:
        return self._reader.described(version)
