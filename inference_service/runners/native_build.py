"""Compiles and loads the native kernels: once for each source and CPU, kept in the user's cache.

They use OpenMP, and must use the runtime that torch has already loaded: two of them in a process would fight for the
cores. So the library is linked without one, and its symbols resolve against torch's.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_SOURCES = Path(__file__).parent / "native"
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=off", "-fPIC", "-fopenmp", "-Wall", "-Wextra")
_TIMEOUT_S = 300

logger = logging.getLogger(__name__)


@cache
def native_library() -> ctypes.CDLL | None:
    """The kernels, or None where they cannot be built here: said once, in the log."""
    try:
        return ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError) as error:
        detail = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        logger.warning("native kernels are off, torch operators run instead (slower); install g++: %s", detail[-500:])
        return None


def _built() -> Path:
    """Path of the library, compiled if it is not in the cache yet."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler found")
    cached = _cache_dir() / f"kernels-{_digest(compiler)}.so"
    if not cached.exists():
        _compile(compiler, cached)
    return cached


def _compile(compiler: str, target: Path) -> None:
    """Compiles beside `target` and renames, so that a reader never sees half a library."""
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        compiled, linked = Path(directory) / "kernels.o", Path(directory) / "kernels.so"
        _call(compiler, *_FLAGS, "-c", str(_SOURCES / "program.cpp"), "-o", str(compiled))
        _call(compiler, "-shared", str(compiled), "-o", str(linked))
        os.replace(linked, target)


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)


def _digest(compiler: str) -> str:
    """Over everything that the library depends on: sources, flags, compiler, and the CPU that `native` stands for."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    version = subprocess.run([compiler, "-dumpfullversion", "-dumpmachine"], capture_output=True, check=True)
    for part in (" ".join(_FLAGS).encode(), version.stdout, _cpu()):
        digest.update(part + b"\0")
    return digest.hexdigest()[:16]


def _cpu() -> bytes:
    """Name and feature flags of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    wanted = (b"model name", b"flags", b"Features", b"CPU part")
    return b"\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _cache_dir() -> Path:
    """The user's own cache; a fresh private directory where that cannot be written."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(root) / "enginehouse" / "native"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(directory, os.W_OK):
            return directory
    except (OSError, RuntimeError):
        logger.debug("%s cannot be written", directory)
    return Path(tempfile.mkdtemp(prefix="enginehouse-native-"))
