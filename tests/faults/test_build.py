from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.build import FAULTS
from tests.faults.driver import drive


def _loops(scratch: Path, faults: list[str], verify: str, step: int, timeout: float = 110) -> dict[str, int]:
    return drive("tests.faults.build", "loops", str(scratch), faults, verify, step, timeout=timeout)


def test_a_build_with_a_fault_at_some_calls_ends_typed_and_publishes_all_or_nothing(tmp_path: Path) -> None:
    faults = ["EIO", "ENOSPC from then on", "kill after"]
    done = _loops(tmp_path, faults, "off", 53)
    assert all(done[fault] > 1 for fault in faults)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("verify", ["off", "on"])
def test_a_build_with_a_fault_at_any_call_ends_typed_and_publishes_all_or_nothing(
    tmp_path: Path, verify: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = _loops(tmp_path, list(FAULTS), verify, 1, timeout=1700)
    with capsys.disabled():
        print(f"\nbuild under faults, verify {verify}: {done}")
