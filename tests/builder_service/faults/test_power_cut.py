"""The queue after a power cut: what was written and not synced is gone, or there in part and in another order."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from builder_service.queue.jobs import JobStore
from tests.faults.driver import drive
from tests.faults.power_cut import Disk, nothing_more, safe_bytes, some, torn_bytes
from tests.faults.shim import Call, Kind, read_log


class Told(NamedTuple):
    """What callers knew at the cut: operations, those that had ended, and the last event seen of each."""

    acknowledged: list[str]
    ended: set[str]
    seen: dict[str, int]


def note(told: Told, what: str, operation: str, sequence: str = "") -> None:
    """Adds a mark of the load."""
    if what == "acknowledged":
        told.acknowledged.append(operation)
    elif what == "ended":
        told.ended.add(operation)
    else:
        told.seen[operation] = int(sequence)


def check(folder: Path, told: Told) -> None:
    """All that was acknowledged is there, what had ended has, and no number of a seen event is given again."""
    jobs = JobStore(folder / "builds.sqlite")
    try:
        for operation in told.acknowledged:
            state = jobs.get(operation).state
            assert state.done or operation not in told.ended, f"{operation} had ended"
        for job in jobs.running():
            next_one = jobs.lose(job.operation, power_cut=bool(job.child)).state.last_sequence
            first_new = next(e.sequence for e in jobs.events_after(job.operation, job.state.last_sequence))
            assert first_new > told.seen.get(job.operation, 0), f"{job.operation}: {first_new} to {next_one}"
    finally:
        jobs.close()


def _matters(call: Call) -> bool:
    """Not the log's index, which is made anew after a crash, nor a checkpoint's cut of a database that only grows to
    the size that it has."""
    return not call.path.endswith("-shm") and call.kind is not Kind.TRUNCATE


def cuts(tmp_path: Path, builds: int, count: int, seed: int) -> int:
    """Cuts the power at `count` places of a load, each with none and with some of the unsynced writes on the disk; how
    many calls the load made."""
    chance = random.Random(seed)
    root, log = tmp_path / "queue", tmp_path / "log"
    root.mkdir()
    drive("tests.builder_service.faults.queue_load", "load", str(root), str(log), builds, seed)
    calls = [call for call in read_log(log) if _matters(call)]
    disk, told = Disk(str(root)), Told([], set(), {})
    places = set(chance.sample(range(len(calls)), count))
    for place, call in enumerate(calls):
        if place in places:
            disk.write_to(tmp_path / f"{place}-none", nothing_more, safe_bytes)
            check(tmp_path / f"{place}-none", told)
            disk.write_to(tmp_path / f"{place}-some", some(place), torn_bytes(place))
            check(tmp_path / f"{place}-some", told)
        if call.kind is Kind.MARK:
            note(told, *call.path.split())
        else:
            disk.play(call)
    assert len(told.acknowledged) == builds
    return len(calls)


def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    cuts(tmp_path, builds=25, count=15, seed=1)


@pytest.mark.long
def test_nor_at_any_of_many_places(tmp_path: Path) -> None:
    total = cuts(tmp_path, builds=60, count=200, seed=2)
    print(f"\nthe power was cut at 200 of {total} calls, each with none and with some of the unsynced writes there")
