"""A daemon holds its versions from before the first read until they are unloaded, whatever else happens."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_store import EngineStore
from engine_store.leases import LEASE_SECONDS
from enginehouse.errors import DataLoss, FailedPrecondition, Internal, NotFound
from inference_service.frontend.served_model import LoadSpec
from inference_service.leases import LeaseKeeper
from inference_service.models import ModelManager

from .frontend.serving import Rig, ScriptedRunner, publish, serve, start

SPEC = LoadSpec(name="tiny", engine="tiny")


class Clock:
    """Seconds since the epoch, moved by the test."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> EngineStore:
    store = EngineStore(tmp_path / "store", clock=clock)
    publish(store, None)
    return store


@pytest.fixture
def keeper(store: EngineStore) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(store, renew_seconds=0.02)
    yield keeper
    keeper.close()


def leases(store: EngineStore) -> list[Path]:
    """The leases that readers have, live or not."""
    return [path for path in (store.root / "leases").glob("tiny.*") if not path.name.endswith(".used")]


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def is_renewed(store: EngineStore, clock: Clock) -> bool:
    return [path.stat().st_mtime for path in leases(store)] == [pytest.approx(clock.now, rel=0, abs=1e-3)]


def test_a_deleted_version_keeps_its_files_while_it_is_held_and_loses_them_after(
    store: EngineStore, keeper: LeaseKeeper, clock: Clock
) -> None:
    lease = keeper.hold("tiny", 1)
    folder = store.version_path("tiny", 1)
    store.delete_version("tiny", 1)
    for _ in range(10):
        clock.now += LEASE_SECONDS / 2
        wait_until(lambda: is_renewed(store, clock))
        store.collect()
        assert (folder / "graph.json").is_file()
    keeper.release(lease)
    assert leases(store) == []
    store.collect()
    assert not folder.exists()


async def test_a_lease_is_renewed_while_the_event_loop_and_its_pool_are_busy(
    store: EngineStore, keeper: LeaseKeeper, clock: Clock
) -> None:
    keeper.hold("tiny", 1)
    done = threading.Event()
    loop = asyncio.get_running_loop()
    busy = [loop.run_in_executor(None, done.wait) for _ in range(64)]
    clock.now += 50
    wait_until(lambda: is_renewed(store, clock))  # blocks the loop
    done.set()
    await asyncio.gather(*busy)


def test_a_renewal_that_fails_is_tried_again(store: EngineStore, keeper: LeaseKeeper, clock: Clock) -> None:
    lease = keeper.hold("tiny", 1)
    (store.root / "leases").rename(store.root / "away")
    (store.root / "leases").write_text("no directory")
    clock.now += 30
    time.sleep(0.1)
    (store.root / "leases").unlink()
    (store.root / "leases").mkdir()
    wait_until(lambda: is_renewed(store, clock))
    keeper.release(lease)
    assert leases(store) == []


def test_a_store_that_takes_no_lease_is_a_typed_error(store: EngineStore, keeper: LeaseKeeper) -> None:
    shutil.rmtree(store.root / "leases", ignore_errors=True)
    (store.root / "leases").write_text("no directory")
    with pytest.raises(Internal) as error:
        keeper.hold("tiny", 1)
    assert error.value.reason == "STORE_IO"


def test_a_version_that_is_not_there_is_not_held(store: EngineStore, keeper: LeaseKeeper) -> None:
    with pytest.raises(NotFound):
        keeper.hold("tiny", 7)
    assert leases(store) == []


async def test_serving_goes_on_while_leases_cannot_be_written(tmp_path: Path) -> None:
    async with serve(tmp_path, None) as rig:
        manager = rig.frontend.models
        shutil.rmtree(rig.store.root / "leases")
        (rig.store.root / "leases").write_text("no directory")
        assert not manager._leases._renew()
        assert (await rig.one(start())).kinds[-1] == "done"
        await manager.unload("tiny")
        assert manager.list() == []


async def test_a_load_that_fails_frees_its_lease(store: EngineStore) -> None:
    held: list[int] = []

    def fails(*_: Any) -> ScriptedRunner:
        held.append(len(leases(store)))
        raise FailedPrecondition("no memory", reason="KV_CACHE_TOO_SMALL")

    manager = ModelManager(store, fails)
    with pytest.raises(FailedPrecondition):
        await manager.load(SPEC)
    assert held == [1]
    assert leases(store) == []
    await manager.close()


async def test_a_damaged_version_frees_its_lease(store: EngineStore) -> None:
    path = store.version_path("tiny", 1) / "graph.json"
    path.chmod(0o644)
    path.write_text("[]")
    manager = ModelManager(store, lambda *_: ScriptedRunner())
    with pytest.raises(DataLoss, match=r"graph\.json"):
        await manager.load(SPEC)
    assert leases(store) == []
    await manager.close()


async def test_a_cancelled_load_holds_its_lease_until_its_thread_has_read_and_freed_all(store: EngineStore) -> None:
    reading, go_on, runner = threading.Event(), threading.Event(), ScriptedRunner()

    def load(*_: Any) -> ScriptedRunner:
        reading.set()
        assert go_on.wait(20)
        return runner

    manager = ModelManager(store, load)
    task = asyncio.create_task(manager.load(SPEC))
    assert await asyncio.to_thread(reading.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert manager.list() == []
    assert len(leases(store)) == 1
    go_on.set()
    await asyncio.to_thread(wait_until, lambda: runner.closed and not leases(store))
    await manager.close()


async def test_a_model_loaded_in_the_place_of_a_dead_one_has_the_only_lease(tmp_path: Path) -> None:
    async with serve(tmp_path, None) as rig:
        rig.runner.fail = SystemExit("a broken invariant")
        await rig.one(start())
        async with asyncio.timeout(10):
            while rig.model.state.name != "FAILED":
                await asyncio.sleep(0.01)
        rig.runner.fail = None
        before = leases(rig.store)
        await rig.frontend.models.load(SPEC)
        assert len(leases(rig.store)) == 1
        assert leases(rig.store) != before


async def test_nothing_stays_of_loads_and_unloads(rig: Rig) -> None:
    manager = rig.frontend.models
    await manager.unload("tiny")
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await manager.load(SPEC)
        await manager.unload("tiny")
    assert leases(rig.store) == []
    await asyncio.to_thread(wait_until, lambda: threading.active_count() <= threads + 1)
    assert len(os.listdir("/proc/self/fd")) <= files + 1


@pytest.fixture
async def rig(tmp_path: Path) -> Any:
    async with serve(tmp_path, None) as rig:
        yield rig
