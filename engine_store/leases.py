"""Leases: a reader says that it uses a version, so that deleted files stay until it lets go."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

LEASE_SECONDS = 60.0


class Lease:
    """One reader's claim on one version. Call `renew` at least every 20 s; it ends 60 s after the last renewal.

    Expiry compares the readers' clocks with the collector's: they must agree within half a minute.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path, self._clock = path, clock
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
        self.renew()

    def renew(self) -> None:
        """Extends the lease to 60 s from now. Makes it anew where it had expired and was removed."""
        now = self._clock()
        self._path.touch()
        os.utime(self._path, (now, now))

    def release(self) -> None:
        """Ends the lease. Safe to repeat."""
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def leased(leases: Path, engine: str, version: int, now: float) -> bool:
    """Whether any reader holds the version at `now`. Leases that expired are removed on the way."""
    live = False
    for path in leases.glob(f"{engine}.{version}.*"):
        try:
            if path.stat().st_mtime + LEASE_SECONDS > now:
                live = True
            else:
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue
    return live
