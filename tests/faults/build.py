"""A whole build under a fault at its n-th durable call below the builder's places, until it meets none."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from builder_service.build.pipeline import run_build
from builder_service.child import typed
from builder_service.job import BuildJob, SourceSpec
from engine_store import EngineStore
from enginehouse.errors import EnginehouseError
from tests.builder_service.conftest import make_tokenizer, random_model
from tests.engine_store.faults.checks import leftovers
from tests.faults.driver import Ended, forked
from tests.faults.shim import DURABLE, Action, Fault

FAULTS = {
    "EIO": (Action.FAIL, errno.EIO),
    "ENOSPC": (Action.FAIL, errno.ENOSPC),
    "ENOSPC from then on": (Action.FAIL_FROM_THEN_ON, errno.ENOSPC),
    "half a write": (Action.HALF, errno.ENOSPC),
    "kill after": (Action.KILL_AFTER, 0),
}
EXPECTED = {errno.EIO: {"Internal"}, errno.ENOSPC: {"ResourceExhausted"}, 0: set()}


def loops(scratch: str, faults: list[str], verify: str, step: int) -> dict[str, int]:
    """Builds one tiny checkpoint again and again. How many builds each fault met, and how they ended."""
    checkpoint = Path(scratch) / "checkpoint"
    random_model("llama", num_hidden_layers=1).save_pretrained(checkpoint)
    make_tokenizer(checkpoint)
    run_build(_job(checkpoint, Path(scratch) / "warm", verify), lambda event: None)  # loads what a build loads
    done: Counter[str] = Counter()
    for fault in faults:
        for nth in range(1, 2000, step):
            root = Path(scratch) / f"{fault}-{nth}".replace(" ", "-")
            root.mkdir()
            action, error = FAULTS[fault]
            ended = forked(lambda r=root: _build(checkpoint, r, verify), Fault(root, nth, action, error, DURABLE))
            try:
                _check(checkpoint, root, ended, verify, error, again=nth // step % 5 == 0)
            except BaseException as raised:
                raised.add_note(f"{fault} at call {nth}: {ended}")
                raise
            if not ended.injected and not ended.signal:
                break
            done.update([fault, ended.value or "killed"])
    return dict(done)


def _job(checkpoint: Path, root: Path, verify: Any) -> BuildJob:
    source = SourceSpec(kind="huggingface", path=str(checkpoint))
    places = {"store": str(root / "store"), "cache": str(root / "cache")}
    return BuildJob(engine_id="tiny", source=source, verify=verify, **places)


def _build(checkpoint: Path, root: Path, verify: str) -> str:
    """Builds as the child process does: "" or the kind of its error, and its reason."""
    logging.disable()
    try:
        run_build(_job(checkpoint, root, verify), lambda event: None)
    except (EnginehouseError, OSError) as error:  # anything else would mean that the fault was misread
        known = typed(error)
        return f"{type(known).__name__} {known.reason}"
    return "succeeded"


def _check(checkpoint: Path, root: Path, ended: Ended, verify: str, error: int, *, again: bool) -> None:
    assert not ended.crash, ended.crash
    if not ended.signal and ended.value != "succeeded":
        assert ended.value.split()[0] in EXPECTED[error]
    store = EngineStore(root / "store")
    before = store.version_numbers("tiny")
    assert len(before) == 1 if ended.value == "succeeded" else len(before) < 2
    store.recover()
    numbers = store.version_numbers("tiny")
    assert set(before) <= set(numbers)
    for number in numbers:
        store.verify("tiny", number)
    assert leftovers(root / "store") == []
    if again:
        run_build(_job(checkpoint, root, verify), lambda event: None)
        assert len(store.version_numbers("tiny")) == 1
        assert numbers == [] or store.version_numbers("tiny") == numbers
        store.verify("tiny", store.version_numbers("tiny")[0])
