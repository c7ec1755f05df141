"""The executor in its own thread: wakes for work, sleeps without, ends cleanly."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from inference_service.config import SchedulerConfig
from inference_service.executor import thread as thread_module
from inference_service.executor.executor import Executor, ExecutorSettings
from inference_service.executor.messages import AddRequest, CancelRequest, RequestOutput, Sampling
from inference_service.executor.thread import ExecutorThread
from inference_service.runners.base import Step

from .scripted import ScriptedRunner, run_alone


class SlowRunner(ScriptedRunner):
    delay = 0.001

    def forward(self, step: Step) -> None:
        time.sleep(self.delay)
        super().forward(step)


class Fixture:
    def __init__(self) -> None:
        self.runner = SlowRunner((64,), 4, check_prefixes=False)
        settings = ExecutorSettings(
            block_size=4, engine_id="tiny@1", max_seq_len=200, scheduler=SchedulerConfig(max_batch_size=8)
        )
        self.executor = Executor(self.runner, settings, time.monotonic)
        self.outputs: SimpleQueue[RequestOutput] = SimpleQueue()
        self.fatal: SimpleQueue[BaseException] = SimpleQueue()
        self.thread = ExecutorThread(self.executor, self._put, self.fatal.put)

    def _put(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            self.outputs.put(output)

    def add(self, request_id: int, max_tokens: int = 5) -> None:
        sampling = Sampling(max_tokens=max_tokens, seed=request_id)
        self.thread.submit(AddRequest(request_id=request_id, token_ids=[1, 2], sampling=sampling))

    def finish(self, count: int) -> dict[int, list[RequestOutput]]:
        histories: dict[int, list[RequestOutput]] = {}
        while count:
            output = self.outputs.get(timeout=10)
            histories.setdefault(output.request_id, []).append(output)
            count -= output.finish_reason is not None
        return histories


@pytest.fixture
def running() -> Iterator[Fixture]:
    fixture = Fixture()
    fixture.thread.start()
    yield fixture
    assert fixture.thread.stop(timeout=10)
    assert fixture.fatal.empty()
    fixture.executor.check_integrity()


def test_submissions_of_many_threads_all_end_as_alone(running: Fixture) -> None:
    def client(first: int) -> None:
        for request_id in range(first, first + 10):
            running.add(request_id)

    clients = [threading.Thread(target=client, args=(first,)) for first in range(0, 40, 10)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    for request_id, history in running.finish(40).items():
        expected = run_alone([1, 2], Sampling(max_tokens=5, seed=request_id), 200, 4)
        assert tuple(token for output in history for token in output.token_ids) == expected.token_ids


def test_it_sleeps_when_idle_and_checks_its_books(running: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = threading.Event()
    check = running.executor.check_integrity
    monkeypatch.setattr(thread_module, "_IDLE_S", 0.01)
    monkeypatch.setattr(running.executor, "check_integrity", lambda: (check(), checked.set()))
    running.add(1)
    running.finish(1)
    assert checked.wait(5)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1, "busy while idle"
    running.add(2)
    running.finish(1)


def test_cancel_takes_effect_while_running(running: Fixture) -> None:
    running.add(1, max_tokens=190)
    running.outputs.get(timeout=5)
    running.thread.submit(CancelRequest(1))
    assert running.finish(1)[1][-1].finish_reason == "cancelled"


def test_a_stuck_step_shows_its_age(running: Fixture) -> None:
    assert running.thread.step_age is None
    running.runner.delay = 0.3
    running.add(1, max_tokens=1)
    deadline = time.monotonic() + 5
    while (running.thread.step_age or 0) < 0.1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (running.thread.step_age or 0) >= 0.1
    running.finish(1)


def test_stop_cancels_what_is_left_and_joins(running: Fixture) -> None:
    running.add(1, max_tokens=190)
    running.outputs.get(timeout=5)
    assert running.thread.stop(timeout=5)
    assert running.finish(1)[1][-1].finish_reason == "cancelled"
    assert not running.thread.is_alive


def test_a_broken_invariant_is_reported_and_ends_the_thread() -> None:
    fixture = Fixture()
    fixture.thread.start()
    fixture.add(1, max_tokens=100)
    fixture.outputs.get(timeout=5)
    fixture.add(1)
    assert isinstance(fixture.fatal.get(timeout=5), AssertionError)
    assert fixture.thread.stop(timeout=5)
