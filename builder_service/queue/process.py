"""One build's child process: started, fed, listened to, measured and ended. Knows nothing of queues or stages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import msgspec

from builder_service.job import BuildJob, ChildEvent, ErrorEvent, ResultEvent
from builder_service.queue.memory import anonymous_bytes
from engine_store.owner import token_of
from service_kit import logs

log = logs.logger("builder.child")

_MAX_LINE = 1 << 20
_TERM_SECONDS = 1.0
_DRAIN_SECONDS = 0.5
"""A child that is gone says nothing more when it was silent for so long, though a grandchild may hold its pipe open."""
_GONE_SECONDS = 0.01
_DECODER = msgspec.json.Decoder(ChildEvent)


@dataclass(frozen=True, kw_only=True)
class ChildSettings:
    """How children are run.

    `command` reads one BuildJob as JSON on standard input and writes ChildEvents, one a line. `memory_limit` in
    bytes, 0 for none; a child above it is killed within `sample_seconds`.
    """

    command: tuple[str, ...] = (sys.executable, "-m", "builder_service.child")
    memory_limit: int = 0
    sample_seconds: float = 0.2


@dataclass
class Outcome:
    """How a child ended: its last event where it sent one, and how its process left."""

    last: ResultEvent | ErrorEvent | None = None
    returncode: int = 0
    over_limit: bool = False
    memory_peak: int = 0
    stderr_tail: deque[str] = field(default_factory=lambda: deque(maxlen=40))


class Child:
    """A running child. Its process group dies with `kill`, and always before `events` is left."""

    def __init__(self, process: Process, settings: ChildSettings, on_memory: Callable[[int, int], None]) -> None:
        self._process, self._settings, self._on_memory = process, settings, on_memory
        self.outcome = Outcome()
        self.token = token_of(process.pid)

    @classmethod
    async def start(cls, job: BuildJob, settings: ChildSettings, on_memory: Callable[[int, int], None]) -> Child:
        """Starts the child in a process group of its own and hands it the job.

        Args:
            on_memory: called with the current and the peak memory in bytes, at each sample.
        """
        process = await asyncio.create_subprocess_exec(
            *settings.command, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=_MAX_LINE, start_new_session=True
        )
        child = cls(process, settings, on_memory)
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died at once; its exit tells
                process.stdin.write(msgspec.json.encode(job) + b"\n")
                await process.stdin.drain()
                process.stdin.close()
        except asyncio.CancelledError:  # nobody else knows of it yet
            await child.kill(patience=0.0)
            raise
        return child

    async def events(self) -> AsyncGenerator[ChildEvent, None]:
        """The child's events until it is gone; then `outcome` is complete."""
        helpers = [asyncio.create_task(self._read_stderr()), asyncio.create_task(self._sample())]
        try:
            async for event in self._read_stdout():
                yield event
                if isinstance(event, ResultEvent | ErrorEvent):
                    self.outcome.last = event
                    return
            await self._gone()
            await asyncio.wait(helpers[:1], timeout=1.0)  # a grandchild may hold the pipe open
        finally:
            # what it had to say was said and is on disk: its slow way out is not waited for
            await self.kill(patience=0.0 if self.outcome.last else _TERM_SECONDS)
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def kill(self, patience: float = _TERM_SECONDS) -> None:
        """Ends the process group: asks, and after `patience` seconds insists. Returns when the child is gone."""
        if patience and self._process.returncode is None and _signal(self._process.pid, signal.SIGTERM):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone(), patience)
        _signal(self._process.pid, signal.SIGKILL)
        self.outcome.returncode = await self._gone()

    async def _gone(self) -> int:
        """The exit code, once there is one. asyncio's `wait` would wait for the pipes, too."""
        while (code := self._process.returncode) is None:
            await asyncio.sleep(_GONE_SECONDS)
        return code

    async def _line(self) -> bytes:
        """The child's next line; empty when there will be none."""
        assert self._process.stdout is not None
        reading = asyncio.ensure_future(self._process.stdout.readline())
        try:
            while True:
                gone = self._process.returncode is not None
                await asyncio.wait({reading}, timeout=_DRAIN_SECONDS if gone else self._settings.sample_seconds)
                if reading.done():
                    return reading.result()
                if gone:
                    return b""
        finally:
            reading.cancel()

    async def _read_stdout(self) -> AsyncGenerator[ChildEvent, None]:
        while True:
            try:
                line = await self._line()
            except ValueError:  # longer than _MAX_LINE: not our protocol
                log.error("the child sent an over-long line", limit=_MAX_LINE)
                await self.kill(patience=0.0)  # it would wait for ever for somebody to read the rest
                return
            if not line:
                return
            try:
                yield _DECODER.decode(line)
            except msgspec.MsgspecError:
                log.warning("the child printed something that is no event", line=line[:200])

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(8192):
            self.outcome.stderr_tail.extend(chunk.decode(errors="replace").splitlines())

    async def _sample(self) -> None:
        while True:
            current = anonymous_bytes(self._process.pid)
            self.outcome.memory_peak = max(self.outcome.memory_peak, current)
            self._on_memory(current, self.outcome.memory_peak)
            if 0 < self._settings.memory_limit < current:
                self.outcome.over_limit = True
                _signal(self._process.pid, signal.SIGKILL)
                return
            await asyncio.sleep(self._settings.sample_seconds)


def _signal(group: int, number: signal.Signals) -> bool:
    """Whether the group was there to take it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
