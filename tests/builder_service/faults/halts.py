"""Points where a process of a test stops: the next one that reaches the armed point halts there, for the test to
kill. Every point that is passed is written down, so that a first run tells which there are."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple

VARIABLE = "ENGINEHOUSE_TEST_HALTS"
How = Literal["asleep", "deaf", "stopped"]
"""asleep: takes signals. deaf: ignores SIGTERM and holds the interpreter's lock. stopped: until SIGCONT."""


class Passed(NamedTuple):
    """A point that a process passed. `who`: the engine that it builds, or "daemon"."""

    pid: int
    who: str
    point: str


class Halts:
    """The points of all processes that share a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._armed, self._trace, self._folder = folder / "armed", folder / "trace", folder
        self._steps: Counter[str] = Counter()
        self.who, self.store = "?", "store"
        """Whose the process is, and how its points in the store begin: "own" in a daemon, which lives for long."""

    @classmethod
    def of_environment(cls) -> Halts:
        return cls(Path(os.environ[VARIABLE]))

    # In the process

    def reached(self, point: str) -> None:
        """Passes the point, or halts there if it is armed."""
        with self._trace.open("a") as trace:
            trace.write(f"{os.getpid()} {self.who} {point}\n")
        with contextlib.suppress(FileNotFoundError):
            armed, how = self._armed.read_text().split()
            if armed == point:
                self._armed.rename(self._folder / f"halted.{os.getpid()}")  # only one process can
                _halt(how)

    def store_step(self, label: str) -> None:
        """The failpoint of a store. A label that comes again in a child is numbered: `store:publish.tree.sync#2`."""
        self._steps[label] += self.store == "store"
        again = f"#{self._steps[label]}" if self._steps[label] > 1 else ""
        self.reached(f"{self.store}:{label}{again}")

    # In the test

    def arm(self, point: str, how: How = "asleep") -> None:
        """The next process that reaches the point halts."""
        draft = self._folder / "draft"
        draft.write_text(f"{point} {how}")
        draft.rename(self._armed)

    def disarm(self) -> None:
        self._armed.unlink(missing_ok=True)

    def halted(self, seconds: float = 60.0) -> int:
        """Waits until a process has halted; its PID."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for found in self._folder.glob("halted.*"):
                found.unlink()
                return int(found.suffix[1:])
            time.sleep(0.005)
        raise AssertionError(f"nothing halted at {self._armed.read_text()}; passed: {self.passed()[-40:]}")

    def go_on(self, pid: int) -> None:
        """Lets a process that halted "stopped" go on: once it has stopped, as it says so a moment before."""
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
        os.kill(pid, signal.SIGCONT)

    def passed(self) -> list[Passed]:
        """All that was passed, in order."""
        with contextlib.suppress(FileNotFoundError):
            rows = (line.split() for line in self._trace.read_text().splitlines())
            return [Passed(int(pid), *row) for pid, *row in rows]
        return []


def _halt(how: str) -> None:
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ctypes.PyDLL(None).sleep(300)
    time.sleep(300)
    raise AssertionError("a halted process went on")
