"""Points where a process of a test stops: the next one that reaches the armed point halts there, for the test to
kill. Every point that is passed is written down, so that a first run tells which there are."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Literal, NamedTuple

VARIABLE = "ENGINEHOUSE_TEST_HALTS"
How = Literal["asleep", "deaf", "stopped"]
"""asleep: takes signals. deaf: ignores SIGTERM and holds the interpreter's lock. stopped: as by SIGSTOP."""


class Passed(NamedTuple):
    """A point that a process passed. `who`: the engine that it builds, or "daemon". `label`: what a store's step is."""

    pid: int
    who: str
    point: str
    label: str


class Halts:
    """The points of all processes that share a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._armed, self._trace, self._folder = folder / "armed", folder / "trace", folder
        self._store_steps = 0
        self.who = "?"

    @classmethod
    def of_environment(cls) -> Halts:
        return cls(Path(os.environ[VARIABLE]))

    # In the process

    def reached(self, point: str, label: str = "-") -> None:
        """Passes the point, or halts there if it is armed."""
        with self._trace.open("a") as trace:
            trace.write(f"{os.getpid()} {self.who} {point} {label}\n")
        with contextlib.suppress(FileNotFoundError):
            armed, how = self._armed.read_text().split()
            if armed in (point, label):
                self._armed.rename(self._folder / f"halted.{os.getpid()}")  # only one process can
                _halt(how)

    def store_step(self, label: str) -> None:
        """The failpoint of a store: its steps are counted within the process, as `store:1` and so on."""
        self._store_steps += 1
        self.reached(f"store:{self._store_steps}", label)

    # In the test

    def arm(self, point: str, how: How = "asleep") -> None:
        """The next process that reaches the point, or a store's step with this label, halts."""
        draft = self._folder / "draft"
        draft.write_text(f"{point} {how}")
        draft.rename(self._armed)

    def disarm(self) -> None:
        self._armed.unlink(missing_ok=True)

    def halted(self, seconds: float = 20.0) -> int:
        """Waits until a process has halted; its PID."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for found in self._folder.glob("halted.*"):
                found.unlink()
                return int(found.suffix[1:])
            time.sleep(0.005)
        raise AssertionError(f"nothing halted at {self._armed.read_text()}; passed: {self.passed()[-40:]}")

    def passed(self) -> list[Passed]:
        """All that was passed, in order."""
        with contextlib.suppress(FileNotFoundError):
            rows = (line.split() for line in self._trace.read_text().splitlines())
            return [Passed(int(pid), *row) for pid, *row in rows]
        return []


def _halt(how: str) -> None:
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ctypes.PyDLL(None).sleep(300)
    else:
        time.sleep(300)
    raise AssertionError("a halted process went on")
