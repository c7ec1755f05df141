"""Publishing: how a staged directory becomes a version, whole and once.

1. every file is synced, digested and shared as a blob; every directory is synced;
2. a number is claimed; the manifest is written last;
3. a record under the build key is linked. This is the decision: of several writers of one key one wins;
4. one rename makes the version visible.

A crash before 3 leaves only staging and a claim, which `recover` removes. A crash between 3 and 4 leaves a decided,
complete directory: whoever meets the record finishes the rename (`finish`), so a winner that died blocks nobody. So
by 3 everything that the record names is durable, the staging entry included.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine_store.blobs import Blobs
from engine_store.claims import Claims
from engine_store.digests import Progress, digest_bytes, digest_file
from engine_store.disk import Disk
from engine_store.layout import MANIFEST, Layout
from engine_store.manifest import File, Manifest
from engine_store.names import VersionRef, is_file_path
from engine_store.owner import is_token, same_owner
from engine_store.reading import manifest_bytes
from engine_store.records import Records
from enginehouse.errors import DataLoss, Internal


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The version that carries a build key, the staging entry that became it, and the digest of its manifest."""

    version: int
    token: str
    manifest: str


class Sealed(NamedTuple):
    """A manifest as it was written into staging, and the digest of its file."""

    manifest: Manifest
    digest: str


class Published(NamedTuple):
    """The manifest of the version now in the store. `reused`: another one with the same key was there already."""

    manifest: Manifest
    reused: bool


class Publisher:
    """The writing half of a store."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        self._layout, self._disk, self._blobs = layout, disk, Blobs(layout, disk)
        self.claims = Claims(layout, disk)

    def prepare(self, tree: Path, progress: Progress) -> tuple[File, ...]:
        """Step 1. Makes the files durable and immutable; those files, sorted by path."""
        files = []
        for path in sorted(_walk(tree)):
            relative = path.relative_to(tree).as_posix()
            if not is_file_path(relative):
                raise Internal("The build wrote a file with an unusable name.", reason="STAGED_FILE_NAME")
            self._disk.chmod(path, 0o444, "publish.file.chmod")
            self._disk.sync_file(path, "publish.file.sync")
            found = digest_file(path, progress=progress)
            self._blobs.share(path, found)
            files.append(File(path=relative, size_bytes=found.size_bytes, digest=found.digest))
        return tuple(files)

    def seal(self, tree: Path, manifest: Manifest) -> Sealed:
        """Step 2, once the number is claimed. Writes the manifest, last of all files, and makes the tree durable."""
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        self._disk.write(tree / MANIFEST, data, "publish.manifest")
        for folder in sorted({tree, *(entry for entry in tree.rglob("*") if entry.is_dir())}, reverse=True):
            self._disk.sync_dir(folder, "publish.tree.sync")
        self._disk.sync_dir(tree.parent, "publish.staging.sync")
        return Sealed(manifest, digest_bytes(data))

    def decide(self, tree: Path, sealed: Sealed, force: bool) -> KeyRecord:
        """Step 3. Who carries the key now: we, or an earlier winner, whose version is then in the store."""
        manifest = sealed.manifest
        keys = self.keys(manifest.name, manifest.build_key)
        ours = KeyRecord(version=manifest.version, token=tree.name, manifest=sealed.digest)
        while True:
            last = keys.latest()
            if not force and (winner := self.carrier(manifest.name, manifest.build_key)):
                return winner
            if keys.append(last.number + 1 if last else 1, ours):
                return ours

    def finish(self, engine: str, build_key: str, record: KeyRecord) -> bool:
        """Step 4, by anybody and any number of times. Whether the record's version is there, deleted or not. The
        record is durable first: its writer may not have come so far."""
        final, staged = self._layout.version(engine, record.version), self._layout.staging / record.token
        if not final.exists() and is_token(record.token) and staged.exists():
            self._disk.make_dirs(final.parent, "publish.rename.folder")
            self._disk.sync_dir(self._layout.key(engine, build_key), "publish.rename.record.sync")
            with contextlib.suppress(FileNotFoundError):  # finished by another process
                self._disk.rename(staged, final, "publish.rename")
            self._disk.sync_dir(final.parent, "publish.rename.sync")
        return final.exists()

    def keys(self, engine: str, build_key: str) -> Records[KeyRecord]:
        """The records of one build key."""
        return self._records(self._layout.key(engine, build_key))

    def named(self, engine: str) -> set[int]:
        """The numbers of all versions that a record of the engine names."""
        folders = self._layout.keys(engine).glob("*")
        return {record.value.version for folder in folders for record in self._records(folder).newest_first()}

    def carrier(self, engine: str, build_key: str) -> KeyRecord | None:
        """The newest record of the key whose version is in the store, its manifest as published; else None. It is
        durable then: its writer may not have come so far."""
        for record in self.keys(engine, build_key).newest_first():
            if self.finish(engine, build_key, record.value) and self.intact(engine, record.value):
                self._disk.sync_dir(self._layout.versions(engine), "publish.reuse.sync")
                return record.value
        return None

    def published_by(self, engine: str, build_key: str, owner: str) -> int | None:
        """The version that the process of the token `owner` published under the key; see `EngineStore`."""
        for record in self.keys(engine, build_key).newest_first():
            if same_owner(record.value.token, owner) and self.finish(engine, build_key, record.value):
                version = record.value.version
                return None if self._layout.tombstone(engine, version).exists() else version
        return None

    def decided(self, engine: str, build_key: str, token: str) -> KeyRecord | None:
        """The record that names this staging entry."""
        records = self.keys(engine, build_key).newest_first()
        return next((record.value for record in records if record.value.token == token), None)

    def record_of(self, manifest: Manifest) -> KeyRecord | None:
        """The record that names the manifest's version under its build key."""
        records = self.keys(manifest.name, manifest.build_key).newest_first()
        return next((record.value for record in records if record.value.version == manifest.version), None)

    def intact(self, engine: str, record: KeyRecord) -> bool:
        """Whether the record's version is in the store with the manifest that was published."""
        if self._layout.tombstone(engine, record.version).exists():
            return False
        try:
            return digest_bytes(manifest_bytes(self._layout, VersionRef(engine, record.version))) == record.manifest
        except (FileNotFoundError, DataLoss):
            return False

    def _records(self, folder: Path) -> Records[KeyRecord]:
        return Records(folder, self._layout.staging, KeyRecord, self._disk, "publish.decide")


def _walk(tree: Path) -> Iterator[Path]:
    """All regular files below `tree`; anything else but a directory is refused."""
    for folder, folders, names in os.walk(tree, onerror=_raise):
        for name in (*folders, *names):
            mode = Path(folder, name).lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise Internal("The build staged a link or a special file.", reason="STAGED_FILE_KIND")
        yield from (Path(folder, name) for name in names)


def _raise(error: OSError) -> None:
    raise error
