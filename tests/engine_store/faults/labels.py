"""A kill at every labelled step of the store: the scenes of test_steps.py, which together pass every label."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from engine_store import EngineStore
from tests.engine_store.faults.checks import leftovers
from tests.engine_store.test_steps import OPERATIONS, Bench
from tests.engine_store.writing import publish
from tests.faults.driver import forked


class Deadly(Bench):
    """Dies at its nth label, 0 for never."""

    def __init__(self, root: Path, nth: int = 0) -> None:
        super().__init__(root)
        self.nth, self.passed = nth, []

    def __call__(self, label: str) -> None:
        self.passed.append(label)
        if len(self.passed) == self.nth:
            os.kill(os.getpid(), signal.SIGKILL)
        super().__call__(label)


def kills(scratch: str, scenes: list[str], step: int) -> dict[str, int]:
    """Kills each scene at its labels 1, 1 + step, ... The number of kills by label."""
    done: Counter[str] = Counter()
    for scene in scenes:
        labels = forked(lambda s=scene: _labels(Path(scratch) / s, s)).value
        for nth in range(1, len(labels) + 1, step):
            root = Path(scratch) / f"{scene}{nth}"
            ended = forked(lambda r=root, n=nth, s=scene: OPERATIONS[s](Deadly(r, n)))
            assert ended.signal == signal.SIGKILL, f"{labels[nth - 1]}: {ended.trouble}"
            try:
                _check(root, damaged={1, 2} if scene == "publish" else set())
            except BaseException as raised:
                raised.add_note(f"{scene} was killed at {labels[nth - 1]} ({nth})")
                raise
            done[labels[nth - 1]] += 1
    return dict(done)


def _labels(root: Path, scene: str) -> list[str]:
    bench = Deadly(root)
    OPERATIONS[scene](bench)
    return bench.passed


def _check(root: Path, damaged: set[int]) -> None:
    """Whole before and after recovery, nothing left over, and the next publish works.

    Args:
        damaged: versions whose files the scene itself spoils.
    """
    before = _whole(root, damaged)
    EngineStore(root).recover()
    assert before <= _whole(root, damaged)
    assert leftovers(root) == []
    for alias in EngineStore(root).list_aliases("tiny"):  # a deletion that had not seen it is withdrawn
        EngineStore(root).verify("tiny", alias.version)
    assert EngineStore(root).recover() == (0, 0, 0)
    after = publish(EngineStore(root), key="after").manifest.version
    EngineStore(root).verify("tiny", after)


def _whole(root: Path, damaged: set[int]) -> set[int]:
    store = EngineStore(root)
    live = store.version_numbers("tiny")
    for number in set(live) - damaged:
        store.verify("tiny", number)
    return set(live)
