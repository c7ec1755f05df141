"""One build for identical requests: which are identical, and who takes whose result."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from builder_service.job import BuildJob


def fingerprint(spec: BuildJob, stamp: str = "") -> str:
    """The same for jobs that would build the same version: all of the job but its alias and labels. "" for a forced
    build, which shares with none.

    Args:
        stamp: the source's `source_stamp`, as the job does not tell whether its files changed.
    """
    if spec.force:
        return ""
    same = msgspec.structs.replace(spec, alias="", labels={})
    return hashlib.sha256(msgspec.json.encode((same, stamp), order="deterministic")).hexdigest()


def source_stamp(spec: BuildJob) -> str:
    """Changes when a local source's files do (names, sizes, times, inodes); "" for the hub's, and what cannot be read:
    the build itself will say what is wrong."""
    path = Path(spec.source.path)
    try:
        if not spec.source.path:
            return ""
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        facts = [(file.name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for file in files for stat in [file.stat()]]
    except OSError:
        return ""
    return hashlib.sha256(repr(facts).encode(errors="surrogateescape")).hexdigest()


def may_share(spec: BuildJob, leader: BuildJob) -> bool:
    """Whether a build whose engine and build key turned out to be the leader's may take its result."""
    verified = leader.verify == "on" or spec.verify == "off"
    return spec.engine_id == leader.engine_id and verified and not (spec.force or leader.force)


class Sharing:
    """Which running build leads, by fingerprint, and which waiting builds follow one for their build key's sake."""

    def __init__(self) -> None:
        self._leaders: dict[str, str] = {}
        self._followers: dict[str, str] = {}

    def lead(self, operation: str, same: str) -> None:
        """A build runs now."""
        if same:
            self._leaders[same] = operation

    def follow(self, operation: str, leader: str) -> None:
        """A build whose key is a running one's waits for its result."""
        self._followers[operation] = leader

    def leader(self, operation: str, same: str) -> str:
        """The running build whose result a waiting one will take; empty: none, it runs itself when its turn comes."""
        return self._followers.get(operation) or (self._leaders.get(same, "") if same else "")

    def followers(self, leader: str) -> list[str]:
        """Those that follow a build for their key's sake; others have its fingerprint."""
        return [operation for operation, followed in self._followers.items() if followed == leader]

    def ended(self, operation: str, same: str) -> None:
        """A build ended, or waits again: nobody follows it any more, and it follows nobody."""
        if self._leaders.get(same) == operation:
            del self._leaders[same]
        self._followers = {each: leader for each, leader in self._followers.items() if operation not in (each, leader)}
