"""The injector of system-call faults: compiled here, loaded by `driver`, armed in a forked process."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).with_name("shim.c")


class Kind(IntFlag):
    """Kinds of durable calls, as in shim.c. MARK is a note in the log: see `mark`."""

    OPEN = 1
    WRITE = 2
    FSYNC = 4
    RENAME = 8
    LINK = 16
    MKDIR = 32
    UNLINK = 64
    RMDIR = 128
    TRUNCATE = 256
    UTIME = 512
    CHMOD = 1024
    MARK = 2048


DURABLE = Kind(2047)


class Action(IntEnum):
    """What happens at the n-th call. HALF writes half of the bytes and fails what is written after."""

    COUNT = 0
    FAIL = 1
    FAIL_FROM_THEN_ON = 2
    KILL_BEFORE = 3
    KILL_AFTER = 4
    HALF = 5


@dataclass(frozen=True)
class Fault:
    """A fault at the n-th call (from 1) of these kinds below `root`."""

    root: Path
    nth: int = 0
    action: Action = Action.COUNT
    error: int = 0
    kinds: Kind = DURABLE


class Call(NamedTuple):
    """A logged call that succeeded. `other`: the new name of a rename or link."""

    kind: Kind
    flags: int
    offset: int
    path: str
    other: str
    data: bytes


@cache
def library() -> Path:
    """The compiled shim; skips the test where it cannot be compiled."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or os.uname().sysname != "Linux":
        pytest.skip("the fault shim needs Linux and a C compiler")
    path = Path(tempfile.mkdtemp(prefix="fault-shim-")) / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(path), str(SOURCE), "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"the fault shim does not compile here: {done.stderr[:300]}")
    return path


def arm(fault: Fault, log: int = -1) -> None:
    """Arms this process, which must have been started with the shim. `log`: a descriptor open for appending."""
    root = os.fsencode(fault.root)
    _shim().fault_arm(root, int(fault.kinds), ctypes.c_long(fault.nth), int(fault.action), fault.error, log)


def disarm() -> None:
    """No call counts any more; the counters stay."""
    _shim().fault_disarm()


def injected() -> int:
    """How many calls were failed or cut since `arm`."""
    return _shim().fault_injected()


def seen() -> int:
    """How many calls counted since `arm`."""
    return _shim().fault_seen()


def mark(text: str) -> None:
    """Notes in the log that the program has come here."""
    _shim().fault_mark(text.encode())


@contextmanager
def recorded(fault: Fault, log: Path) -> Iterator[None]:
    """Appends every durable call of this process below the fault's root to the log."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    arm(fault, fd)
    try:
        yield
    finally:
        disarm()
        os.close(fd)


def read_log(path: Path) -> list[Call]:
    """The calls of a log, in their order. A last one that was cut short by a kill is dropped."""
    data, at, calls = path.read_bytes(), 0, []
    header = struct.Struct("<IIqIII")
    while at + header.size <= len(data):
        kind, flags, offset, *sizes = header.unpack_from(data, at)
        at += header.size
        parts = []
        for size in sizes:
            parts.append(data[at : at + size])
            at += size
        if at <= len(data):
            calls.append(Call(Kind(1 << kind), flags, offset, parts[0].decode(), parts[1].decode(), parts[2]))
    return calls


@cache
def _shim() -> ctypes.CDLL:
    shim = ctypes.CDLL(None)
    shim.fault_seen.restype = shim.fault_injected.restype = ctypes.c_long
    return shim
