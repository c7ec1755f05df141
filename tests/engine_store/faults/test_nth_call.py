from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_store.faults.nth import FAULTS, OPERATIONS
from tests.faults.driver import drive


def _loop(scratch: Path, operations: list[str], faults: list[str], step: int, timeout: float = 110) -> dict[str, int]:
    return drive("tests.engine_store.faults.nth", "loops", str(scratch), operations, faults, step, timeout=timeout)


def test_an_operation_with_a_fault_at_some_calls_is_whole_or_undone_and_clean(tmp_path: Path) -> None:
    assert _loop(tmp_path, ["publish", "move an alias"], list(FAULTS), 13)["met"] > 20


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_with_a_fault_at_any_call_is_whole_or_undone_and_clean(
    tmp_path: Path, operation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = _loop(tmp_path, [operation], list(FAULTS), 1, timeout=1700)
    with capsys.disabled():
        print(f"\n{operation} under faults: {done}")
