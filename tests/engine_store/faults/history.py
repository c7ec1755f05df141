"""What the processes of a soak did and saw, one JSON line each, appended to one file that outlives them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Literal

import msgspec

from engine_store import Manifest


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A step of an attempt, a trap that its writer survived, or (`seen`) what a reader found. `attempt` is unique, and
    what it published carries it; of a trap it is the writer's name."""

    phase: Literal["start", "done", "failed", "evicted", "seen", "trap"]
    attempt: str
    op: str = ""
    key: str = ""
    version: int = 0
    alias: str = ""
    etag: str | None = None
    """start: the etag that was asked for; done: the one that was given."""
    time: float = 0.0
    reused: bool = False
    reason: str = ""
    digest: str = ""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation wanted, and how it ended: None for one that was killed."""

    start: Event
    end: Event | None

    @property
    def done(self) -> bool:
        return self.end is not None and self.end.phase == "done"


class Journal:
    """The file. A line is one write, so lines of many processes never mix."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def note(self, event: Event) -> None:
        os.write(self._fd, msgspec.json.encode(event) + b"\n")


def seen(manifest: Manifest) -> Event:
    """A version as a reader found it."""
    digest = hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()
    attempt = manifest.labels["attempt"]
    return Event(phase="seen", attempt=attempt, key=manifest.build_key, version=manifest.version, digest=digest)


def read_events(path: Path) -> list[Event]:
    """All events, oldest first."""
    return [msgspec.json.decode(line, type=Event) for line in path.read_bytes().splitlines()]


def attempts(events: list[Event]) -> list[Attempt]:
    """The operations, in the order of their starts."""
    ends = {event.attempt: event for event in events if event.phase in ("done", "failed")}
    return [Attempt(start=event, end=ends.get(event.attempt)) for event in events if event.phase == "start"]
