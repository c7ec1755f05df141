"""The builder's cache of hub repositories, laid out as the hub's own client does it, so that either can use it.

models--<owner>--<name>/
  blobs/<sha256, or git's sha1 for a small file>     and <...>.part while it is downloaded
  snapshots/<commit>/<file>                          links to blobs
  refs/<branch or tag>                               the commit it stood at when it was last asked for
  listings/<commit>.json                             ours: names, sizes and digests of the files, as the hub said
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from builder_service.sources.base import reading, write_whole

_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class HubFile(msgspec.Struct, frozen=True):
    """A file of a repository. `blob`: its sha256 where it is stored as a large file, else git's sha1; hexadecimal."""

    name: str
    size: int
    blob: str

    def valid(self) -> bool:
        """Whether it can be a file of the cache."""
        return self.size >= 0 and _BLOB.fullmatch(self.blob) is not None and is_inside(self.name)


def is_commit(revision: str) -> bool:
    """Whether a revision can never mean something else."""
    return _COMMIT.fullmatch(revision) is not None


def is_inside(name: str) -> bool:
    """Whether a relative path stays under its directory."""
    return (
        name.isprintable() and not name.startswith("/") and all(part not in ("", ".", "..") for part in name.split("/"))
    )


class HubCache:
    """The part of the cache that holds one repository."""

    def __init__(self, cache: Path, repo: str) -> None:
        self._root = cache / f"models--{repo.replace('/', '--')}"

    def snapshot(self, commit: str) -> Path:
        """The directory of a commit's files."""
        return self._root / "snapshots" / commit

    def blob(self, file: HubFile) -> Path:
        """Where a file's content lies once it is whole."""
        return self._root / "blobs" / file.blob

    def present(self, file: HubFile) -> int:
        """The bytes of a file that lie on disk."""
        for path in (self.blob(file), part(self.blob(file))):
            try:
                return min(path.stat().st_size, file.size)
            except FileNotFoundError:
                continue
        return 0

    def link(self, commit: str, file: HubFile) -> None:
        """Puts a whole blob into a snapshot."""
        path = self.snapshot(commit) / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.symlink_to(os.path.relpath(self.blob(file), path.parent))
            temporary.replace(path)

    def commit_of(self, revision: str) -> str | None:
        """The commit that a revision stood at when it was last asked for."""
        if is_commit(revision):
            return revision
        path = self._root / "refs" / revision
        with reading(revision):
            commit = path.read_text().strip() if path.is_file() else ""
        return commit if is_commit(commit) else None

    def remember(self, revision: str, commit: str, files: list[HubFile]) -> None:
        """Records what the hub said of a revision."""
        write_whole(self._root / "listings" / f"{commit}.json", msgspec.json.encode(files))
        if not is_commit(revision):
            write_whole(self._root / "refs" / revision, commit.encode())

    def listing(self, commit: str) -> list[HubFile] | None:
        """The files of a commit, where the hub was once asked."""
        path = self._root / "listings" / f"{commit}.json"
        try:
            files = msgspec.json.decode(path.read_bytes(), type=list[HubFile])
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return files if all(file.valid() for file in files) else None

    def known_digests(self, commit: str) -> dict[Path, HubFile]:
        """The blobs whose sha256 and size the hub stated."""
        files = self.listing(commit) or []
        return {self.blob(file).resolve(): file for file in files if _SHA256.fullmatch(file.blob)}


def part(blob: Path) -> Path:
    """Where a blob grows."""
    return blob.with_name(f"{blob.name}.part")
