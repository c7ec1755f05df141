from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from builder_service.job import BuildConfig, BuildJob, SourceSpec, Stage
from builder_service.queue.events import Finished
from builder_service.queue.sharing import fingerprint, source_stamp
from tests.builder_service.supervising import Bench, working


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with working(tmp_path, places=2) as made:
        yield made


def job(path: str = "/m", **fields: object) -> BuildJob:
    source = SourceSpec(kind="huggingface", path=path)
    return BuildJob(**{"engine_id": "tiny", "store": "/s", "cache": "/c", "source": source, **fields})


def test_builds_are_identical_in_all_but_alias_and_labels() -> None:
    same = fingerprint(job())
    assert fingerprint(job(alias="prod", labels={"a": "b"})) == same
    different = (
        {"engine_id": "other"},
        {"verify": "off"},
        {"weights": "dummy"},
        {"source": SourceSpec(kind="gguf", path="/m")},
        {"build": BuildConfig(max_batch_size=8)},
    )
    assert len({same, *(fingerprint(job(**fields)) for fields in different)}) == len(different) + 1
    assert fingerprint(job(force=True)) == ""


def test_a_checkpoint_that_changed_is_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_bytes(b"one")
    spec = job(str(folder))
    stamp = source_stamp(spec)
    assert source_stamp(spec) == stamp
    (folder / "weights").write_bytes(b"two")
    os.utime(folder / "weights", (1, 1))
    assert source_stamp(spec) != stamp
    assert fingerprint(spec, source_stamp(spec)) != fingerprint(spec, stamp)
    assert source_stamp(job(str(tmp_path / "none"))) == source_stamp(job("")) == ""


async def test_identical_builds_run_once_and_each_sets_its_alias(bench: Bench) -> None:
    leader, *followers = [bench.submit("held", "m", alias=f"alias-{n}") for n in range(4)]
    await bench.running(leader)
    other = bench.submit()
    assert (await bench.finish(other)).stage is Stage.SUCCEEDED, "a free place is not taken by a follower"
    assert [bench.stage(each) for each in followers] == [Stage.QUEUED] * 3
    assert [bench.leader(each) for each in (leader, *followers)] == ["", leader, leader, leader]
    assert all(leader in bench.texts(each)[-1] for each in followers)
    bench.go()
    assert (await bench.finish(leader)).shares == ""
    for each in followers:
        assert await bench.finish(each) == Finished(Stage.SUCCEEDED, 1, reused=True, shares=leader)
        assert bench.leader(each) == leader
    assert [alias.version for alias in bench.store.list_aliases("tiny")] == [1] * 4
    assert bench.store.version_numbers("tiny") == [1]


async def test_the_leaders_failure_is_its_followers_too(bench: Bench) -> None:
    leader, follower = bench.submit("held", "m"), bench.submit("held", "m")
    await bench.running(leader)
    os.kill(int(bench.jobs.get(leader).child.split(".")[2]), 9)
    error = (await bench.finish(leader)).error
    assert error is not None
    assert await bench.finish(follower) == Finished(Stage.FAILED, error=error, shares=leader)


async def test_the_leaders_cancellation_is_not_its_followers(bench: Bench) -> None:
    leader, second, third = (bench.submit("held", "m") for _ in range(3))
    await bench.running(leader)
    await bench.supervisor.cancel(leader)
    await bench.running(second)
    assert bench.leader(third) == second
    bench.go()
    assert (await bench.finish(second)).shares == ""
    assert (await bench.finish(third)).shares == second


async def test_a_follower_is_cancelled_alone(bench: Bench) -> None:
    leader, second, third = (bench.submit("held", "m") for _ in range(3))
    await bench.running(leader)
    await bench.supervisor.cancel(second)
    assert (await bench.finish(second)).stage is Stage.CANCELLED
    bench.go()
    assert [(await bench.finish(each)).stage for each in (leader, third)] == [Stage.SUCCEEDED] * 2


async def test_force_never_shares(bench: Bench) -> None:
    first, second = (bench.submit("held", "m", force=True, labels={"key": "k"}) for _ in range(2))
    await bench.running(first, second)
    bench.go()
    assert {(await bench.finish(each)).version for each in (first, second)} == {1, 2}


async def test_different_requests_with_one_key_are_one_build(bench: Bench) -> None:
    """What the first child found out is not built again by the second."""
    first = bench.submit("held", labels={"key": "k"})
    await bench.running(first)
    second = bench.submit("held", labels={"key": "k"}, alias="prod")
    await bench.until(second, lambda: bench.leader(second) == first)
    state = bench.jobs.get(second).state
    assert (state.stage, state.attempt) == (Stage.QUEUED, 1)
    assert bench.staged() == []
    bench.go()
    assert await bench.finish(second) == Finished(Stage.SUCCEEDED, 1, reused=True, shares=first)
    assert bench.store.resolve("tiny", "prod").version == 1
    assert bench.store.version_numbers("tiny") == [1]


async def test_a_build_that_shall_be_verified_does_not_take_an_unverified_result(bench: Bench) -> None:
    first = bench.submit("held", verify="off", labels={"key": "k"})
    await bench.running(first)
    second = bench.submit("held", verify="on", labels={"key": "k"})
    await bench.running(second)
    assert bench.leader(second) == ""
    bench.go()
    await asyncio.gather(bench.finish(first), bench.finish(second))


async def test_followers_of_a_daemon_that_ended_find_the_version(tmp_path: Path) -> None:
    async with working(tmp_path, places=2) as first:
        builds = [first.submit("held", "m", labels={"key": "k"}, alias=f"alias-{n}") for n in range(3)]
        await first.running(builds[0])
    (tmp_path / "go").touch()
    async with working(tmp_path, places=2) as second:
        ends = [await second.finish(each) for each in builds]
        assert [(end.stage, end.version) for end in ends] == [(Stage.SUCCEEDED, 1)] * 3
        assert len(second.store.list_aliases("tiny")) == 3


async def test_many_identical_builds_are_few(tmp_path: Path) -> None:
    async with working(tmp_path, places=2) as bench:
        builds = [bench.submit(source=str(n % 4), labels={"key": f"k{n % 4}"}) for n in range(40)]
        ends = [await bench.finish(each) for each in builds]
        assert {end.stage for end in ends} == {Stage.SUCCEEDED}
        assert len(bench.store.version_numbers("tiny")) == 4
        assert sum(not end.reused for end in ends) == 4


async def test_small_builds_run_beside_and_a_large_one_alone(tmp_path: Path) -> None:
    async with working(tmp_path, places=4, memory_budget=100) as bench:
        first, large, small = (bench.submit("held", memory=size, labels={"key": f"k{size}"}) for size in (60, 70, 40))
        await bench.running(first, small)
        assert bench.stage(large) is Stage.QUEUED
        bench.go()
        assert [(await bench.finish(each)).stage for each in (first, large, small)] == [Stage.SUCCEEDED] * 3


async def test_a_higher_priority_starts_first(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        held = bench.submit("held", labels={"key": "k0"})
        await bench.running(held)
        low, high = (bench.submit(priority=p, labels={"key": f"k{p}"}) for p in (0.1, 0.9))
        bench.go()
        await bench.finish(low)
        began = [bench.jobs.events_after(each, 0)[0].time for each in (high, low)]
        assert began == sorted(began)
