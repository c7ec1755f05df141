"""Tokens that name their owner: which process made a staging entry, and whether it still lives."""

from __future__ import annotations

import os
import re
import secrets
from functools import cache
from pathlib import Path

_TOKEN = re.compile(r"(?P<boot>[0-9a-f]{32})\.(?P<ns>\d{1,20})\.(?P<pid>\d{1,10})\.(?P<start>\d{1,20})\.[0-9a-f]{16}")
_NEVER = 2**64 - 1
"""The start time in the token of a process that was gone already: no living one has it."""


def new_token() -> str:
    """A unique file name that carries this boot, PID namespace, process and the process's start time."""
    return token_of(os.getpid())


def token_of(pid: int) -> str:
    """A unique token that names another process of this machine as the owner."""
    (boot, namespace), start = _machine(), _start_time(pid)
    return f"{boot}.{namespace}.{pid}.{_NEVER if start is None else start}.{secrets.token_hex(8)}"


def is_token(name: str) -> bool:
    """Whether `name` was made by `new_token`."""
    return _TOKEN.fullmatch(name) is not None


def owner_alive(token: str) -> bool | None:
    """Whether the token's process lives; None when it belongs to another machine or container."""
    match = _TOKEN.fullmatch(token)
    if match is None or (match["boot"], int(match["ns"])) != _machine():
        return None
    return _start_time(int(match["pid"])) == int(match["start"])


def same_owner(left: str, right: str) -> bool:
    """Whether two tokens name the same process."""
    return is_token(left) and is_token(right) and left.rpartition(".")[0] == right.rpartition(".")[0]


def owner_pid(token: str) -> int:
    """The PID in a token; 0 in what is none."""
    match = _TOKEN.fullmatch(token)
    return int(match["pid"]) if match else 0


@cache
def _machine() -> tuple[str, int]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    return boot, os.stat("/proc/self/ns/pid").st_ino


def _start_time(pid: int) -> int | None:
    """The process's start in clock ticks since boot (field 22 of its stat); None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
