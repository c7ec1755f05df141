from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from builder_service.events import Finished, Log, Memory, Progress, Started
from builder_service.job import BuildJob, SourceSpec, Stage
from builder_service.jobs import JobStore
from builder_service.process import ChildSettings
from builder_service.supervisor import Supervisor
from engine_store import EngineStore
from engine_store.owner import owner_alive
from enginehouse.errors import ResourceExhausted

SCRIPTED = (sys.executable, str(Path(__file__).with_name("scripted_child.py")))


class Bench:
    """A supervisor over real SQLite, a real store and scripted children."""

    def __init__(self, root: Path, settings: ChildSettings, places: int = 1) -> None:
        self.root = root
        self.store = EngineStore(root / "store")
        self.jobs = JobStore(root / "builds.sqlite")
        self.supervisor = Supervisor(self.jobs, self.store, settings, places)

    def submit(self, do: str = "publish", **labels: str) -> str:
        source = SourceSpec(kind="huggingface", path="/none")
        spec = BuildJob(
            engine_id="tiny",
            store=str(self.store.root),
            cache=str(self.root),
            source=source,
            labels={"do": do, **labels},
        )
        return self.supervisor.submit(spec, b"").operation

    async def until(self, operation: str, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not happened():
                await self.supervisor.changes.next(operation).wait()

    async def finish(self, operation: str) -> Finished:
        async with asyncio.timeout(20):
            await self.supervisor.until_done(operation)
        event = self.jobs.events_after(operation, 0, 10_000)[-1].event
        assert isinstance(event, Finished)
        return event

    def texts(self, operation: str) -> list[str]:
        return [each.event.text for each in self.jobs.events_after(operation, 0) if isinstance(each.event, Log)]

    def staged(self) -> list[str]:
        path = self.root / "store" / "staging"
        return os.listdir(path) if path.exists() else []


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, ChildSettings(command=SCRIPTED, memory_limit=150 << 20))
    await made.supervisor.start()
    yield made
    await made.supervisor.close()
    made.jobs.close()


def _gone(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True


async def test_a_build_goes_through_its_stages_and_its_version_is_in_the_store(bench: Bench) -> None:
    operation = bench.submit()
    finished = await bench.finish(operation)
    assert finished == Finished(Stage.SUCCEEDED, version=1)
    bench.store.verify("tiny", 1)
    events = [stored.event for stored in bench.jobs.events_after(operation, 0)]
    stages = [event.stage for event in events if isinstance(event, Started)]
    assert stages == [
        Stage.FETCHING,
        Stage.CONVERTING,
        Stage.CAPTURING,
        Stage.COMPILING,
        Stage.VERIFYING,
        Stage.PUBLISHING,
    ]
    state = bench.jobs.get(operation).state
    assert (state.build_key, state.fraction, state.memory_peak > 0) == ("k1", 1.0, True)
    assert isinstance(events[-2], Memory)


async def test_the_same_key_again_is_reused(bench: Bench) -> None:
    await bench.finish(bench.submit())
    assert await bench.finish(bench.submit()) == Finished(Stage.SUCCEEDED, version=1, reused=True)


async def test_a_typed_error_of_the_child_is_the_builds_error(bench: Bench) -> None:
    finished = await bench.finish(bench.submit("refuse"))
    assert finished.stage is Stage.FAILED
    assert finished.error is not None
    assert (finished.error.code, finished.error.reason) == (9, "UNSUPPORTED_ARCHITECTURE")


@pytest.mark.parametrize(("do", "how"), [("crash", "SIGSEGV"), ("exit", "exit code 3")])
async def test_a_crash_fails_its_build_alone_and_names_how(bench: Bench, do: str, how: str) -> None:
    crashed, fine = bench.submit(do), bench.submit()
    error = (await bench.finish(crashed)).error
    assert error is not None
    assert (error.reason, error.metadata) == ("BUILD_CRASHED", {"ended_with": how})
    assert (await bench.finish(fine)).stage is Stage.SUCCEEDED


async def test_a_child_above_the_memory_limit_is_stopped_with_the_peak(bench: Bench) -> None:
    operation = bench.submit("hog")
    error = (await bench.finish(operation)).error
    assert error is not None
    assert (error.code, error.reason) == (8, "MEMORY_LIMIT")
    assert int(error.metadata["peak_bytes"]) > int(error.metadata["limit_bytes"]) == 150 << 20
    assert bench.jobs.get(operation).state.memory_peak == int(error.metadata["peak_bytes"])


async def test_cancel_ends_the_whole_process_group_in_two_seconds_and_leaves_nothing(bench: Bench) -> None:
    operation = bench.submit("hang")
    await bench.until(operation, lambda: bool(bench.texts(operation)))
    assert len(bench.staged()) == 1
    began = time.monotonic()
    await bench.supervisor.cancel(operation)
    assert time.monotonic() - began < 2.0
    finished = await bench.finish(operation)
    assert finished.stage is Stage.CANCELLED
    assert finished.error is not None
    assert finished.error.code == 1
    assert bench.staged() == []
    assert _gone(int(bench.texts(operation)[0].split()[1]))
    await bench.supervisor.cancel(operation)  # done: stays as it is
    assert bench.jobs.get(operation).state.stage is Stage.CANCELLED


async def test_a_waiting_build_is_cancelled_without_starting(bench: Bench) -> None:
    running, waiting = bench.submit("hang"), bench.submit()
    await bench.supervisor.cancel(waiting)
    assert [type(stored.event) for stored in bench.jobs.events_after(waiting, 0)] == [Finished]
    await bench.supervisor.cancel(running)
    assert (await bench.finish(running)).stage is Stage.CANCELLED
    assert bench.store.list_engines() == []


async def test_noise_and_floods_of_a_child_do_no_harm(bench: Bench) -> None:
    operation = bench.submit("chatter")
    assert (await bench.finish(operation)).stage is Stage.SUCCEEDED
    events = [stored.event for stored in bench.jobs.events_after(operation, 0, 10_000)]
    progress = [event.done for event in events if isinstance(event, Progress)]
    assert len(progress) < 100
    assert progress == sorted(progress)
    assert progress[-1] == 19_999
    assert [event.stage for event in events if isinstance(event, Started)] == [Stage.FETCHING, Stage.CAPTURING]


async def test_closing_puts_a_running_build_back_and_the_next_daemon_finishes_it(tmp_path: Path) -> None:
    first = Bench(tmp_path, ChildSettings(command=SCRIPTED))
    await first.supervisor.start()
    operation = first.submit("once")
    await first.until(operation, (tmp_path / "begun").exists)
    child = first.jobs.get(operation).child
    await first.supervisor.close()
    assert not owner_alive(child)
    assert first.jobs.get(operation).state.stage is Stage.QUEUED
    first.jobs.close()
    second = Bench(tmp_path, ChildSettings(command=SCRIPTED))
    await second.supervisor.start()
    assert (await second.finish(operation)).stage is Stage.SUCCEEDED
    state = second.jobs.get(operation).state
    assert state.attempt == 2
    assert [stored.sequence for stored in second.jobs.events_after(operation, 0)] == list(
        range(1, state.last_sequence + 1)
    )
    await second.supervisor.close()
    second.jobs.close()


async def test_builds_run_side_by_side_in_their_places(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ChildSettings(command=SCRIPTED), places=2)
    await bench.supervisor.start()
    stuck, fine = bench.submit("hang"), bench.submit()
    assert (await bench.finish(fine)).stage is Stage.SUCCEEDED
    assert bench.jobs.get(stuck).state.stage is not Stage.QUEUED
    await bench.supervisor.close()
    bench.jobs.close()


async def test_a_child_that_says_too_much_at_once_is_ended(bench: Bench) -> None:
    operation = bench.submit("shout")
    finished = await bench.finish(operation)
    assert finished.stage is Stage.FAILED


async def test_the_end_of_a_build_is_written_once_there_is_space_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder_service.supervisor._RETRY_SECONDS", 0.05)
    operation = bench.submit("hang")
    await bench.until(operation, lambda: bool(bench.texts(operation)))
    database = bench.jobs._db
    database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count').fetchone()[0] + 1}")
    with contextlib.suppress(ResourceExhausted, sqlite3.OperationalError):
        while True:
            bench.jobs.record(operation, Log("info", "filling the disk"))
    cancelling = asyncio.create_task(bench.supervisor.cancel(operation))
    await asyncio.sleep(2.0)  # the child ignores SIGTERM for one
    assert not bench.jobs.get(operation).state.done, "the disk was not full: this test shows nothing"
    database.execute("PRAGMA max_page_count = 100000")
    assert (await bench.finish(operation)).stage in (Stage.CANCELLED, Stage.FAILED)
    await cancelling
