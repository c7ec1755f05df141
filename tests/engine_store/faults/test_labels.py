from __future__ import annotations

from pathlib import Path

import pytest

from engine_store.steps import STEPS
from tests.faults.driver import drive


def _kills(scratch: Path, scenes: list[str], step: int, timeout: float = 110) -> dict[str, int]:
    return drive("tests.engine_store.faults.labels", "kills", str(scratch), scenes, step, timeout=timeout)


def test_a_kill_at_some_labels_leaves_whole_versions_and_nothing_else(tmp_path: Path) -> None:
    assert sum(_kills(tmp_path, ["discard", "delete"], 17).values()) > 3


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_kill_at_every_label_leaves_whole_versions_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At each of its occurrences in the scenes that together pass every label."""
    kills = _kills(tmp_path, [scene for scene in STEPS if scene != "stage"], 1, timeout=1700)
    with capsys.disabled():
        print(f"\n{sum(kills.values())} kills at {len(kills)} labels: {kills}")
    assert kills.keys() == {label for labels in STEPS.values() for label in labels}
