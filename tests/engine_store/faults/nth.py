"""Each operation of a store under a fault at its n-th durable call, n = 1, 2, ..., until it no longer meets one."""

from __future__ import annotations

import errno
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from engine_store import EngineStore
from engine_store.disk import store_errors
from tests.engine_store.faults.checks import State, recovered, state
from tests.engine_store.writing import die_at, fill, manifest
from tests.faults.driver import Ended, forked
from tests.faults.shim import DURABLE, Action, Fault, Kind

BIG = 1 << 20
LATER = 10 * 365 * 86400.0


class Operation(NamedTuple):
    """`act` on a store that `prepare` made."""

    prepare: Callable[[EngineStore], object]
    act: Callable[[EngineStore], object]


def publish(store: EngineStore, key: str = "k1", *, force: bool = False) -> None:
    """As a builder does it: what its own writes raise becomes typed, too."""
    with store.stage() as staging:
        with store_errors():
            fill(staging.path, key, BIG)
        staging.publish(manifest(key=key), force=force)


def _nothing(store: EngineStore) -> None:
    """An empty store."""


def _one(store: EngineStore) -> None:
    publish(store)


def _two(store: EngineStore) -> None:
    publish(store)
    publish(store, key="k2")


def _aliased(store: EngineStore) -> None:
    _two(store)
    store.set_alias("tiny", "prod", 1)


def _deleted(store: EngineStore) -> None:
    _two(store)
    store.delete_version("tiny", 1)


def _abandoned(store: EngineStore) -> None:
    """Writers that died before and after their decision."""
    _one(store)
    for step in range(3, 60, 4):
        ended = forked(lambda step=step: publish(EngineStore(store.root, failpoint=die_at(step)), key=f"d{step}"))
        assert not ended.crash


def _collect_later(store: EngineStore) -> None:
    EngineStore(store.root, clock=lambda: time.time() + LATER).collect()


OPERATIONS = {
    "publish": Operation(_nothing, lambda store: publish(store)),
    "publish a shared blob": Operation(_one, lambda store: publish(store, force=True)),
    "publish a known key": Operation(_one, lambda store: publish(store)),
    "set a first alias": Operation(_two, lambda store: store.set_alias("tiny", "prod", 1)),
    "move an alias": Operation(_aliased, lambda store: store.set_alias("tiny", "prod", 2, "1")),
    "delete an alias": Operation(_aliased, lambda store: store.delete_alias("tiny", "prod")),
    "delete a version": Operation(_two, lambda store: store.delete_version("tiny", 1)),
    "collect": Operation(_deleted, _collect_later),
    "recover": Operation(_abandoned, lambda store: store.recover()),
}

FAULTS = {
    "EIO": (Action.FAIL, errno.EIO, DURABLE),
    "ENOSPC": (Action.FAIL, errno.ENOSPC, DURABLE),
    "ENOSPC from then on": (Action.FAIL_FROM_THEN_ON, errno.ENOSPC, DURABLE),
    "EIO from then on": (Action.FAIL_FROM_THEN_ON, errno.EIO, DURABLE),
    "half a write": (Action.HALF, errno.ENOSPC, Kind.WRITE),
    "kill before": (Action.KILL_BEFORE, 0, DURABLE),
    "kill after": (Action.KILL_AFTER, 0, DURABLE),
}
TYPED = {"", "ResourceExhausted:STORE_FULL", "Internal:STORE_IO"}


def loops(scratch: str, operations: list[str], faults: list[str], step: int) -> dict[str, int]:
    """Runs each operation with each fault at call 1, 1 + step, ..., until it meets none. What that amounted to."""
    done: Counter[str] = Counter()
    for index, name in enumerate(operations):
        folder = Path(scratch) / f"operation{index}"
        folder.mkdir()
        before, after = _prepare(folder, OPERATIONS[name])
        for fault in faults:
            try:
                done.update(_loop(folder, OPERATIONS[name], fault, step, before, after))
            except BaseException as raised:
                raised.add_note(f"{name}, {fault}")
                raise
    return dict(done)


def _prepare(folder: Path, operation: Operation) -> tuple[State, State]:
    def prepare() -> None:
        operation.prepare(EngineStore(folder / "template"))

    made = forked(prepare)  # a process that is dead afterwards: recovery may take what it left
    assert not made.trouble, made.trouble
    before = state(EngineStore(folder / "template"))
    copy = _copy(folder, "done")
    operation.act(EngineStore(copy))
    return before, state(EngineStore(copy))


def _loop(folder: Path, operation: Operation, fault: str, step: int, before: State, after: State) -> dict[str, int]:
    action, error, kinds = FAULTS[fault]
    for nth in range(1, 1000, step):
        root = _copy(folder, "store")
        ended = forked(lambda root=root: _act(operation, root), Fault(root, nth, action, error, kinds))
        try:
            check(operation, root, ended, before, after)
        except BaseException as raised:
            raised.add_note(f"call {nth}: {ended}")
            raise
        if not ended.injected and not ended.signal:
            return {"met": nth // step, fault: nth // step}
    raise AssertionError("the calls never ended")


def check(operation: Operation, root: Path, ended: Ended, before: State, after: State) -> None:
    """All or nothing; typed; clean after recovery; and the operation works afterwards."""
    assert not ended.crash, ended.crash
    assert ended.error in TYPED
    found = state(EngineStore(root))
    assert found in (before, after)
    if not ended.signal and not ended.error:
        assert found == after
    found = recovered(root)
    assert found in (before, after)
    if not ended.signal and not ended.error:
        assert found == after
    if found == before:
        operation.act(EngineStore(root))
        assert state(EngineStore(root)) == after
        assert recovered(root) == after


def _act(operation: Operation, root: Path) -> None:
    operation.act(EngineStore(root))


def _copy(folder: Path, name: str) -> Path:
    """A fresh copy of the template, hard links and times as they are."""
    target = folder / name
    subprocess.run(["rm", "-rf", str(target)], check=True)
    if (folder / "template").exists():
        subprocess.run(["cp", "-a", str(folder / "template"), str(target)], check=True)
    return target
