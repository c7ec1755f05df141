from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import msgspec
import pytest

from builder_service.job import Stage
from builder_service.queue.events import RUNNING, Finished, Log, Memory, Progress, Started
from engine_store import EngineStore
from engine_store.owner import owner_alive, owner_pid, token_of
from engine_store.recovery import Recovered
from enginehouse.errors import ResourceExhausted
from tests.builder_service.supervising import SCRIPTED, Bench, working


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with working(tmp_path) as made:
        yield made


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
    # a slow start is told in seconds
    progress = [event.done for event in events if isinstance(event, Progress) and event.unit == "bytes"]
    assert len(progress) < 100
    assert progress == sorted(progress)
    assert progress[-1] == 19_999
    fractions = [event.fraction for event in events if isinstance(event, Progress)]
    assert fractions == sorted(set(fractions))
    assert [event.stage for event in events if isinstance(event, Started)] == [Stage.FETCHING, Stage.CAPTURING]


async def test_closing_puts_a_running_build_back_and_the_next_daemon_finishes_it(tmp_path: Path) -> None:
    async with working(tmp_path) as first:
        operation = first.submit("once")
        await first.until(operation, (tmp_path / "begun").exists)
        child = first.jobs.get(operation).child
        await first.supervisor.close()
        assert not owner_alive(child)
        assert first.stage(operation) is Stage.QUEUED
    async with working(tmp_path) as second:
        assert (await second.finish(operation)).stage is Stage.SUCCEEDED
        state = second.jobs.get(operation).state
        assert state.attempt == 2
        sequences = [stored.sequence for stored in second.jobs.events_after(operation, 0)]
        assert sequences == list(range(1, state.last_sequence + 1))


async def test_builds_run_side_by_side_in_their_places(tmp_path: Path) -> None:
    async with working(tmp_path, places=2) as bench:
        stuck, fine = bench.submit("hang"), bench.submit()
        assert (await bench.finish(fine)).stage is Stage.SUCCEEDED
        assert bench.stage(stuck) is not Stage.QUEUED


async def test_a_child_that_says_too_much_at_once_is_ended(bench: Bench) -> None:
    operation = bench.submit("shout")
    finished = await bench.finish(operation)
    assert finished.stage is Stage.FAILED


async def test_the_end_of_a_build_is_written_once_there_is_space_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder_service.queue.supervisor._RETRY_SECONDS", 0.05)
    operation = bench.submit("hang")
    await bench.until(operation, lambda: bool(bench.texts(operation)))
    database = bench.jobs.database.connection
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


async def test_a_dead_childs_own_children_do_not_hold_its_build_up(bench: Bench) -> None:
    finished = await bench.finish(bench.submit("leave", labels={"signal": "9"}))
    assert finished.error is not None
    assert (finished.error.reason, finished.error.metadata["ended_with"]) == ("BUILD_CRASHED", "SIGKILL")


async def test_a_signal_without_a_name_ends_a_build_too(bench: Bench) -> None:
    finished = await bench.finish(bench.submit("leave", labels={"signal": str(signal.SIGRTMIN + 6)}))
    assert finished.error is not None
    assert finished.error.metadata["ended_with"] == f"signal {signal.SIGRTMIN + 6}"


async def test_an_end_is_written_once_nobody_else_holds_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder_service.queue.supervisor._RETRY_SECONDS", 0.05)
    bench = Bench(tmp_path)
    bench.jobs.database.execute("PRAGMA busy_timeout = 10")
    operation = bench.submit()
    with contextlib.closing(sqlite3.connect(tmp_path / "builds.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(bench.supervisor._write(lambda: bench.jobs.record(operation, Log("info", "end"))))
        await asyncio.sleep(0.3)
        assert not writing.done()
        other.execute("ROLLBACK")
    await writing
    assert bench.texts(operation) == ["end"]
    bench.jobs.close()


# A version that exists counts


async def _begun(bench: Bench) -> None:
    async with asyncio.timeout(20):
        while not (bench.root / "begun").exists():
            await asyncio.sleep(0.01)


async def test_a_build_that_is_cancelled_after_it_had_published_succeeds(bench: Bench) -> None:
    operation = bench.submit("mute", force=True, alias="prod")
    await _begun(bench)
    await bench.supervisor.cancel(operation)
    assert await bench.finish(operation) == Finished(Stage.SUCCEEDED, version=1)
    assert bench.store.resolve("tiny", "prod").version == 1


async def test_a_build_that_had_published_when_its_daemon_ends_is_not_put_back(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        operation = bench.submit("mute", force=True)
        await _begun(bench)
        await bench.supervisor.close()
        assert bench.jobs.get(operation).state.version == 1


async def test_a_build_that_dies_after_it_had_published_succeeds(bench: Bench) -> None:
    operation = bench.submit("mute")
    await _begun(bench)
    os.killpg(owner_pid(bench.jobs.get(operation).child), signal.SIGKILL)
    assert await bench.finish(operation) == Finished(Stage.SUCCEEDED, version=1)


async def test_a_build_that_had_published_when_its_daemon_died_is_not_built_again(tmp_path: Path) -> None:
    """`force` would make a second version. The child lives on until the next daemon ends it."""
    bench = Bench(tmp_path)
    operation = bench.submit("mute", force=True, alias="prod")
    child = subprocess.Popen(SCRIPTED, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    bench.jobs.record(operation, Started(Stage.FETCHING, 0.0, 1))
    bench.jobs.set_child(operation, token_of(child.pid))
    bench.jobs.set_build_key(operation, "k1")
    child.stdin.write(msgspec.json.encode(bench.jobs.get(operation).spec))
    child.stdin.close()
    await _begun(bench)
    await bench.supervisor.recover()
    assert child.wait() == -signal.SIGKILL
    assert await bench.finish(operation) == Finished(Stage.SUCCEEDED, version=1)
    assert bench.store.resolve("tiny", "prod").version == 1
    assert bench.store.version_numbers("tiny") == [1]
    bench.jobs.close()


async def test_a_build_that_had_not_published_when_its_daemon_died_is_queued_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    operation = bench.submit(force=True)
    bench.jobs.record(operation, Started(Stage.FETCHING, 0.0, 1))
    await bench.supervisor.recover()
    job = bench.jobs.get(operation)
    assert (job.state.stage, job.state.attempt, job.losses) == (Stage.QUEUED, 2, 1)
    assert bench.stage(operation) is Stage.QUEUED, "nothing starts before the server listens"
    bench.jobs.close()


async def test_an_alias_that_cannot_be_set_fails_the_build_and_names_the_version(bench: Bench) -> None:
    error = (await bench.finish(bench.submit(alias="Not An Id"))).error
    assert error is not None
    assert (error.code, error.metadata["version"], error.metadata["alias"]) == (3, "1", "Not An Id")
    assert "Version 1 of `tiny` was published" in error.message


# Cancel


async def test_cancel_takes_two_seconds_at_most_at_every_stage(tmp_path: Path) -> None:
    """Of a child that ignores SIGTERM; asked for twice."""
    async with working(tmp_path, places=len(RUNNING)) as bench:
        builds = {bench.submit("deaf", engine_id=stage, labels={"stage": stage}): stage for stage in RUNNING}
        for operation, stage in builds.items():
            await bench.until(operation, lambda each=operation: bool(bench.texts(each)))
            assert bench.stage(operation) is stage

        async def cancel(operation: str) -> float:
            began = time.monotonic()
            await bench.supervisor.cancel(operation)
            return time.monotonic() - began

        seconds = await asyncio.gather(*(cancel(operation) for operation in [*builds, *builds]))
        assert max(seconds) < 2.0
        assert {bench.stage(operation) for operation in builds} == {Stage.CANCELLED}
        assert bench.staged() == []


async def test_a_caller_that_does_not_wait_for_its_cancel_cancels_all_the_same(bench: Bench) -> None:
    operation = bench.submit("hang")
    await bench.until(operation, lambda: bool(bench.texts(operation)))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bench.supervisor.cancel(operation), 0.05)
    assert (await bench.finish(operation)).stage is Stage.CANCELLED


async def test_a_build_that_just_starts_is_cancelled(bench: Bench) -> None:
    operation = bench.submit("hang")
    await bench.until(operation, lambda: bench.stage(operation) is Stage.FETCHING)
    began = time.monotonic()
    await bench.supervisor.cancel(operation)
    assert time.monotonic() - began < 2.0
    assert (await bench.finish(operation)).stage is Stage.CANCELLED


class SlowStore(EngineStore):
    """Shared storage that takes its time to clear up."""

    def recover(self, gone: Collection[str] = ()) -> Recovered:
        time.sleep(2.2)
        return super().recover(gone)


async def test_cancel_does_not_wait_for_a_slow_store(tmp_path: Path) -> None:
    async with working(tmp_path, store=SlowStore(tmp_path / "store")) as bench:
        operation = bench.submit("hang")
        await bench.until(operation, lambda: bool(bench.texts(operation)))
        began = time.monotonic()
        await bench.supervisor.cancel(operation)
        assert time.monotonic() - began < 2.0
        assert bench.stage(operation) is Stage.CANCELLED
        async with asyncio.timeout(10):
            while bench.staged():
                await asyncio.sleep(0.05)


# Progress


async def test_progress_moves_every_second_in_every_stage_and_never_back(bench: Bench) -> None:
    operation = bench.submit("still", memory=0)
    await bench.finish(operation)
    stored = [each for each in bench.jobs.events_after(operation, 0) if not isinstance(each.event, Memory | Finished)]
    times = [each.time for each in stored]
    assert max(b - a for a, b in itertools.pairwise(times)) < 1.5
    moves = [each.event.fraction for each in stored if isinstance(each.event, Progress)]
    assert moves == sorted(set(moves))
    begins = {each.event.stage: each.event.fraction for each in stored if isinstance(each.event, Started)}
    assert max(move for move in moves if move < begins[Stage.VERIFYING]) > begins[Stage.CAPTURING]


async def test_a_child_that_talks_for_ever_fills_no_disk(bench: Bench) -> None:
    operation = bench.submit("talk")
    await bench.finish(operation)
    texts = bench.texts(operation)
    assert len(texts) == 1001
    assert texts[-1] == "2001 more log lines were dropped."
