"""Runs an executor in a thread of its own, which sleeps when there is nothing to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import Enum
from queue import Empty, SimpleQueue
from threading import Thread

from inference_service.executor.executor import Executor
from inference_service.executor.messages import Command, ExecutorStats, RequestOutput

_log = logging.getLogger(__name__)

_IDLE_S = 1.0
"""Idle this long, the executor checks its own books once: late enough not to delay the next request of a burst."""


class _Stop(Enum):
    STOP = "stop"


class ExecutorThread:
    """The executor's thread and its inbox. All methods are callable from any thread.

    `on_outputs` gets each step's outputs, `on_fatal` the error that ended the thread: a broken invariant, after which
    no output comes, so the receiver ends what is open. Both are called from the executor thread and must return at
    once.
    """

    def __init__(
        self,
        executor: Executor,
        on_outputs: Callable[[list[RequestOutput]], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._executor = executor
        self._on_outputs = on_outputs
        self._on_fatal = on_fatal
        self._step_started: float | None = None
        self._inbox: SimpleQueue[Command | _Stop] = SimpleQueue()
        self._thread = Thread(target=self._run, name="executor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, command: Command) -> None:
        """Hands a command over; it takes effect at the next step's border."""
        self._inbox.put(command)

    def stats(self) -> ExecutorStats:
        return self._executor.stats()

    @property
    def step_age(self) -> float | None:
        """Seconds that the running step has taken so far; None between steps. Health watches it for a stuck device."""
        started = self._step_started
        return None if started is None else time.monotonic() - started

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, timeout: float | None = None) -> bool:
        """Cancels what is left, after the running step, and joins. False: the thread still runs after `timeout` s.
        Commands handed over later are dropped. Idempotent."""
        self._inbox.put(_Stop.STOP)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._step()
            self._executor.cancel_all()
            self._step()
        except BaseException as error:
            _log.critical("the executor stopped on a broken invariant", exc_info=True)
            self._on_fatal(error)

    def _step(self) -> None:
        self._step_started = time.monotonic()
        outputs = self._executor.step()
        self._step_started = None
        if outputs:
            self._on_outputs(outputs)

    def _take_commands(self) -> bool:
        """Submits all that is in the inbox; waits for the first one when idle. False: told to stop."""
        try:
            while True:
                command = self._next_command()
                if isinstance(command, _Stop):
                    return False
                self._executor.submit(command)
        except Empty:
            return True

    def _next_command(self) -> Command | _Stop:
        if self._executor.has_work:
            return self._inbox.get_nowait()
        try:
            return self._inbox.get(timeout=_IDLE_S)
        except Empty:
            self._executor.check_integrity()
            return self._inbox.get()
