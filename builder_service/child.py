"""`python -m builder_service.child`: one build in a process of its own.

Reads a `BuildJob` as JSON from standard input, writes `ChildEvent`s as JSON lines to standard output, the result or
the error last. Exit code 0 with a result, 1 with an error. It dies with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import msgspec

from builder_service.job import BuildJob, ChildEvent, ErrorEvent, LogEvent, ProgressEvent, ResultEvent
from enginehouse.errors import EnginehouseError, Internal, InvalidArgument, ResourceExhausted, shorten

HEARTBEAT_SECONDS = 1.0
MIN_INTERVAL_SECONDS = 0.1
MAX_JOB_BYTES = 1 << 20
MAX_THREADS = 8
_PR_SET_PDEATHSIG = 1
_M_MMAP_THRESHOLD = -3


class EventWriter:
    """Writes events to a stream, from several threads. Progress is thinned to ten a second; the last one is repeated
    when nothing else was written for a second."""

    def __init__(self, stream: BinaryIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._written = clock()
        self._progress: ProgressEvent | None = None

    def report(self, event: ChildEvent) -> None:
        """Writes an event, or remembers it where progress comes too fast."""
        with self._lock:
            if isinstance(event, ProgressEvent):
                self._progress = event
                soon = self._clock() - self._written < MIN_INTERVAL_SECONDS
                if soon and event.done < event.total:
                    return
            else:
                self._progress = None
            if isinstance(event, LogEvent):
                event = LogEvent(event.level, shorten(event.text))
            self._write(event)

    def beat(self) -> None:
        """Repeats the current progress if a second passed in silence."""
        with self._lock:
            if self._progress is not None and self._clock() - self._written >= HEARTBEAT_SECONDS:
                self._write(self._progress)

    def _write(self, event: ChildEvent) -> None:
        self._stream.write(msgspec.json.encode(event) + b"\n")
        self._stream.flush()
        self._written = self._clock()


def main() -> int:
    """Runs the child; returns its exit code."""
    _die_with_parent()
    _die_first()
    _limit_threads()
    _return_freed_memory()
    signal.signal(signal.SIGTERM, _terminate)
    writer = EventWriter(_take_stdout())
    threading.Thread(target=_beat, args=(writer,), daemon=True).start()
    try:
        writer.report(_run(writer))
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        writer.report(_error_event(error))
        return 1
    return 0


def _run(writer: EventWriter) -> ResultEvent:
    try:
        job = msgspec.json.decode(sys.stdin.buffer.read(MAX_JOB_BYTES), type=BuildJob)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"The build job cannot be read: {error}", reason="BAD_JOB") from error
    from builder_service.build.pipeline import run_build  # after the thread limits, which torch reads when it loads
    from builder_service.build.validate import run_check

    return (run_check if job.validate_only else run_build)(job, writer.report)


def _beat(writer: EventWriter) -> None:
    while True:
        time.sleep(HEARTBEAT_SECONDS / 4)
        writer.beat()


def _take_stdout() -> BinaryIO:
    """The real standard output; whatever libraries print goes to standard error instead."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream


def _die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends. Linux only."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def _die_first() -> None:
    """When memory is out, the kernel takes this process and not the daemon: a build may allocate faster than it is
    measured. Linux only; where it is not allowed, the kernel's own choice stands."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _limit_threads() -> None:
    """Half the cores: the machine may serve, too, and threads that wait for each other on busy cores are slow."""
    threads = max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) // 2))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _return_freed_memory() -> None:
    """glibc keeps freed blocks below 32 MiB, which held a layer's q and o for every layer; from 1 MiB on, map them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM unwinds, so that the staging directory is removed."""
    raise SystemExit(128 + number)


def _error_event(error: BaseException) -> ErrorEvent:
    traceback.print_exception(error, file=sys.stderr)
    known = typed(error)
    return ErrorEvent(known.code.value[0], known.reason, known.message, known.metadata)


def typed(error: BaseException) -> EnginehouseError:
    """What the caller may know of an error."""
    if isinstance(error, EnginehouseError):
        return error
    if isinstance(error, MemoryError):
        return ResourceExhausted("The build ran out of memory; give the builder more.", reason="OUT_OF_MEMORY")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceExhausted("The builder's disk is full; free some space and build again.", reason="DISK_FULL")
    if isinstance(error, OSError) and error.errno:
        name = errno.errorcode.get(error.errno, str(error.errno))
        message = f"Reading or writing a file failed ({name}); check the builder's disks, then build again."
        return Internal(message, reason="BUILD_IO", metadata={"errno": name})
    return Internal("The build failed inside the builder; its log has the details.", reason="BUILD_FAILED")


if __name__ == "__main__":
    sys.exit(main())
