"""`python -m tests.faults.driver <module> <function> <JSON arguments>`: a warm process with the shim loaded.

It runs one function of a test helper and prints its result as JSON. The function forks the processes that meet the
faults (`forked`, `start`): quicker than new interpreters, and safe, for this process has one thread.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.faults import shim

ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """How a forked process ended. `signal`: the one that killed it, 0 for none; `error`: the class and reason of a
    typed error; `crash`: the traceback of anything else; `injected`: calls that a fault met."""

    signal: int = 0
    error: str = ""
    crash: str = ""
    value: Any = None
    injected: int = 0

    @property
    def trouble(self) -> str:
        """What it raised, typed or not, or what killed it."""
        return self.error + self.crash + (f"signal {self.signal}" if self.signal else "")


class Child(NamedTuple):
    """A forked process that runs."""

    pid: int
    pipe: int

    def wait(self) -> Ended:
        """Its end. Call once."""
        with os.fdopen(self.pipe, "rb") as pipe:
            text = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            return Ended(signal=os.WTERMSIG(status))
        return Ended(*json.loads(text))


def drive(module: str, function: str, *args: Any, timeout: float = 110.0) -> Any:
    """In a test: runs `function(*args)` of `module` in a driver process, and returns its result. Arguments and result
    pass as JSON. What the function raises fails the test."""
    environment = {**os.environ, "LD_PRELOAD": str(shim.library()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", __name__, module, function, json.dumps(args)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        pytest.fail(f"{function}{args} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}", pytrace=False)
    sys.stderr.write(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def start(work: Callable[[], Any], fault: shim.Fault | None = None) -> Child:
    """Forks a process that runs `work` under the fault."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        ended = _run(work, fault)
        with os.fdopen(writing, "w") as pipe:
            json.dump(ended, pipe)
        os._exit(0)
    os.close(writing)
    return Child(pid, reading)


def forked(work: Callable[[], Any], fault: shim.Fault | None = None) -> Ended:
    """Runs `work` in a forked process under the fault, to its end."""
    return start(work, fault).wait()


def _run(work: Callable[[], Any], fault: shim.Fault | None) -> Ended:
    from enginehouse.errors import EnginehouseError

    value, error, crash = None, "", ""
    try:
        if fault is not None:
            shim.arm(fault)
        value = work()
    except EnginehouseError as raised:
        error = f"{type(raised).__name__}:{raised.reason}"
    except BaseException:
        crash = traceback.format_exc()
    shim.disarm()
    return Ended(0, error, crash, value, shim.injected())


def main() -> None:
    """Runs the function that the command line names."""
    module, function, args = sys.argv[1:]
    print(json.dumps(getattr(importlib.import_module(module), function)(*json.loads(args))))


if __name__ == "__main__":
    main()
