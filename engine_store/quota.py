"""What a store holds, and which versions give way when it holds too much.

Bytes are counted by inode: a blob that ten versions link counts once. The law of eviction: a version that a reader
holds or an alias names is never touched; of the others the least recently used go first, where a version counts as
used when it was made and whenever a reader held it. One whose manifest cannot be read goes before all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec

from engine_store.layout import MANIFEST, Layout
from engine_store.manifest import UNREADABLE
from engine_store.names import VersionRef, is_id, is_number
from enginehouse.errors import ResourceExhausted

Parts = tuple[str, ...]
"""A directory, as names from the store's root on."""


class Usage(NamedTuple):
    """The bytes of all files in the store, each inode once, and its quota in bytes (0: none)."""

    used_bytes: int
    quota_bytes: int


class Inventory:
    """The store's files by inode, each with the versions that hold it.

    A blob's own name holds nothing: it is removed when no version and no staged file links it. Everything that is
    no version's (staging, records) is held by None. Only the store's own directories are looked at: its root may be a
    mount point, with a lost+found that nobody may read.
    """

    def __init__(self, layout: Layout) -> None:
        self._sizes: dict[int, int] = {}
        self._holders: dict[int, set[VersionRef | None]] = {}
        self._files: dict[VersionRef, set[int]] = {}
        self._blobs: set[int] = set()
        for top in (layout.engines, layout.blobs.parent, layout.staging, layout.leases):
            for folder, entry in _files(str(top), (top.name,)):
                self._add(folder, entry)
        self.used_bytes = sum(self._sizes.values())
        """The bytes of all files when the store was read."""
        self.held_bytes = sum(size for inode, size in self._sizes.items() if self._holders[inode])
        """The bytes that stay when unused blobs and the dropped versions are gone."""

    @property
    def versions(self) -> set[VersionRef]:
        """The versions that are there and not dropped; hidden ones too."""
        return set(self._files)

    @property
    def unused_blobs(self) -> int:
        """How many blobs nothing holds."""
        return sum(not self._holders[inode] for inode in self._blobs)

    def drop(self, version: VersionRef) -> None:
        """Counts the version's files as gone, as far as nothing else holds them."""
        for inode in self._files.pop(version, ()):
            self._holders[inode].discard(version)
            if not self._holders[inode]:
                self.held_bytes -= self._sizes[inode]

    def _add(self, folder: Parts, entry: os.DirEntry[str]) -> None:
        try:
            stat = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        self._sizes[stat.st_ino] = stat.st_size
        holders = self._holders.setdefault(stat.st_ino, set())
        if folder[:1] == ("blobs",):
            self._blobs.add(stat.st_ino)
            return
        holder = _version_of(folder)
        holders.add(holder)
        if holder is not None:
            self._files.setdefault(holder, set()).add(stat.st_ino)


def plan(inventory: Inventory, candidates: Iterable[VersionRef], goal: int) -> list[VersionRef]:
    """Drops candidates in their order until at most `goal` bytes are held, or none is left; those dropped."""
    dropped = []
    for version in candidates:
        if inventory.held_bytes <= goal:
            break
        inventory.drop(version)
        dropped.append(version)
    return dropped


def create_time(layout: Layout, version: VersionRef) -> float:
    """When the version was made, in seconds since the epoch; 0 when its manifest does not say."""
    try:
        data = (layout.version(*version) / MANIFEST).read_bytes()
        return msgspec.json.decode(data, type=_Made).create_time.timestamp()
    except (OSError, ValueError, OverflowError, *UNREADABLE):  # a time that no clock shows, too
        return 0.0


def over_quota(usage: Usage, needed_bytes: int) -> ResourceExhausted:
    """The refusal of what does not fit."""
    if needed_bytes > usage.quota_bytes:
        why = "raise it: no clearing makes enough room."
    else:
        why = (
            "what is left is held by readers or named by aliases. Delete aliases or unload models, or raise the quota."
        )
    quota, needed = usage.quota_bytes >> 20, needed_bytes >> 20
    return ResourceExhausted(
        f"The engine store's quota of {quota} MiB has no room for {needed} MiB more: {why}",
        reason="STORE_QUOTA",
        metadata={"needed_bytes": needed_bytes, **usage._asdict()},
    )


class _Made(msgspec.Struct):
    create_time: datetime


def _files(folder: str, parts: Parts) -> Iterator[tuple[Parts, os.DirEntry[str]]]:
    """Everything below `folder` but directories, with the directory that it lies in; `parts` names `folder`."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, (*parts, entry.name))
        else:
            yield parts, entry


def _version_of(folder: Parts) -> VersionRef | None:
    """The version that a directory belongs to."""
    match folder:
        case ["engines", engine, "versions", number, *_] if is_id(engine) and is_number(number):
            return VersionRef(engine, int(number))
    return None
