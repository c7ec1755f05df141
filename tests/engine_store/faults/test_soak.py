from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults.driver import drive


def _soak(scratch: Path, rounds: int, seed: int, timeout: float) -> dict[str, Any]:
    return drive("tests.engine_store.faults.soak", "soak", str(scratch), rounds, seed, timeout=timeout)


def test_writers_that_die_and_fail_leave_readers_only_whole_versions(tmp_path: Path) -> None:
    total = _soak(tmp_path, 3, 1, timeout=100)
    assert total["kills"] >= 3
    assert total["verified"] > 0


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_rounds_of_writers_that_die_and_fail_leave_readers_only_whole_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nearly each label and each call of each operation is met by a kill and by errors (test_labels.py and
    test_nth_call.py: each, but one at a time)."""
    total = _soak(tmp_path, 100, 2, timeout=1100)
    with capsys.disabled():
        print("\nstore soak:", json.dumps(total))
    assert len(total["labels_never_killed"]) < 3
    assert total["traps_left"] <= total["traps"] // 10
