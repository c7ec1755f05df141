from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_store.faults.power import SCENARIOS
from tests.faults.driver import drive


@pytest.fixture
def ram(tmp_path: Path) -> Iterator[str]:
    """A folder in memory where there is one: thousands of trees are written."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="power-cut-", dir=memory if usable else tmp_path) as folder:
        yield folder


def _cut(folder: str, scenario: str, seeds: int, points: int, *, lying: bool, timeout: float = 110) -> dict[str, int]:
    return drive(
        "tests.engine_store.faults.power", "power_cuts", folder, scenario, seeds, points, lying, timeout=timeout
    )


def test_after_a_power_cut_all_that_was_acknowledged_is_there_and_whole(ram: str) -> None:
    assert _cut(ram, "one writer", 1, 6, lying=False)["disks"] == 24


def test_after_a_power_cut_of_a_disk_that_ignores_fsync_damage_is_told(ram: str) -> None:
    assert _cut(ram, "one writer", 1, 6, lying=True)["disks"] == 24


def test_a_writer_relies_on_nothing_that_a_dead_one_had_not_synced(ram: str) -> None:
    assert drive("tests.engine_store.faults.power", "heirs", ram, 29, 0)["kills"] > 3


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_writer_relies_on_nothing_that_one_killed_at_any_call_had_not_synced(
    ram: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = drive("tests.engine_store.faults.power", "heirs", ram, 1, 1, timeout=1700)
    with capsys.disabled():
        print(f"\npower cuts after a kill: {done}")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_after_a_power_cut_at_any_call_all_that_was_acknowledged_is_there_and_whole(
    ram: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = _cut(ram, scenario, 4, 0, lying=False, timeout=1700)
    with capsys.disabled():
        print(f"\npower cuts, {scenario}: {done}")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_after_a_power_cut_at_any_call_of_a_disk_that_ignores_fsync_damage_is_told(
    ram: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = _cut(ram, scenario, 4, 0, lying=True, timeout=1700)
    with capsys.disabled():
        print(f"\npower cuts with lying fsync, {scenario}: {done}")
