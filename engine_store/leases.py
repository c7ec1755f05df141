"""Leases: a reader says that it uses a version, so that deleted files stay until it lets go, and when it last did.

<store>/leases/<engine>.<n>.<token>  one reader; the file's mtime is its last renewal
<store>/leases/<engine>.<n>.used     the file's mtime is when any reader last held the version
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from engine_store.disk import Disk
from engine_store.layout import USED, Layout
from engine_store.names import VersionRef, is_id, is_number
from engine_store.owner import is_token, new_token, owner_alive

LEASE_SECONDS = 60.0


class Lease:
    """One reader's claim on one version. Call `renew` at least every 20 s; it ends 60 s after the last renewal.

    Expiry compares the readers' clocks with the collector's: they must agree within half a minute.
    """

    def __init__(self, layout: Layout, disk: Disk, version: VersionRef, clock: Callable[[], float]) -> None:
        self._path = layout.lease(*version, new_token())
        self._used = layout.last_use(*version)
        self._disk, self._clock = disk, clock
        if not layout.leases.is_dir():
            disk.make_dirs(layout.leases, "lease.folder")
        disk.touch(self._path, clock(), "lease.take")

    def renew(self) -> None:
        """Extends the lease to 60 s from now. Makes it anew where it had expired and was removed.

        Raises: OSError.
        """
        self._disk.touch(self._path, self._clock(), "lease.renew")
        self._disk.touch(self._used, self._clock(), "lease.used")

    def release(self) -> None:
        """Ends the lease. Safe to repeat. Raises OSError."""
        self.withdraw()
        self._disk.touch(self._used, self._clock(), "lease.used")

    def withdraw(self) -> None:
        """Ends a lease that was never used."""
        self._disk.remove(self._path, "lease.release")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class LeaseFile(NamedTuple):
    """An entry of the leases' directory. `time`: its mtime; `token`: the reader, or "used"."""

    path: Path
    version: VersionRef
    token: str
    time: float

    def live(self, now: float) -> bool:
        """Whether it is a lease that holds its version at `now`."""
        return self.token != USED and self.time + LEASE_SECONDS > now


def lease_files(layout: Layout) -> Iterator[LeaseFile]:
    """Every lease, expired ones too, and every record of a last use."""
    try:
        paths = list(layout.leases.iterdir())
    except FileNotFoundError:
        return
    for path in paths:
        match path.name.split(".", 2):
            case [engine, number, token] if is_id(engine) and is_number(number) and (token == USED or is_token(token)):
                with contextlib.suppress(FileNotFoundError):  # released meanwhile
                    yield LeaseFile(path, VersionRef(engine, int(number)), token, path.stat().st_mtime)


def leased(layout: Layout, now: float) -> set[VersionRef]:
    """The versions that readers hold at `now`."""
    return {file.version for file in lease_files(layout) if file.live(now)}


def last_uses(layout: Layout) -> dict[VersionRef, float]:
    """When each version was last held, in seconds since the epoch; without those that never were."""
    return {file.version: file.time for file in lease_files(layout) if file.token == USED}


def clear_leases(layout: Layout, disk: Disk, now: float, step: str) -> None:
    """Removes leases that expired or whose reader died on this machine, and last uses of versions that are gone."""
    for file in lease_files(layout):
        if file.token == USED:
            needed = layout.version(*file.version).exists()
        else:
            needed = file.live(now) and owner_alive(file.token) is not False
        if not needed:
            disk.remove(file.path, step)
