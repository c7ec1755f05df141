"""Every durable step has a label of the table, and every label of the table is met."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import engine_store
from engine_store import EngineStore
from engine_store.leases import LEASE_SECONDS
from engine_store.owner import new_token
from engine_store.steps import STEPS
from enginehouse.errors import FailedPrecondition
from tests.engine_store.writing import BIG, dead_token, publish, start_writer

LABELS = {label for labels in STEPS.values() for label in labels}


class Bench:
    """A store that notes its labels. `at`: what happens at a label, once; `other` is the same store, unnoted."""

    def __init__(self, root: Path) -> None:
        self.labels: set[str] = set()
        self.now = 1000.0
        self.at: dict[str, Callable[[], object]] = {}
        self.root = root
        self.store = EngineStore(root, failpoint=self, clock=lambda: self.now)
        self.other = EngineStore(root, clock=lambda: self.now)

    def __call__(self, label: str) -> None:
        self.labels.add(label)
        self.at.pop(label, lambda: None)()


class _Died(BaseException):
    """The process is gone: nothing after this is done."""


def _die() -> None:
    raise _Died


def _publish(bench: Bench) -> None:
    publish(bench.store)
    assert publish(bench.store).reused
    publish(bench.store, force=True)  # takes the blob
    weights = bench.store.version_path("tiny", 1) / "weights" / "rank0.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(b"x" * BIG)
    publish(bench.store, force=True)  # heals the blob


def _discard(bench: Bench) -> None:
    bench.at["publish.manifest.write"] = lambda: publish(bench.other)
    assert publish(bench.store).reused


def _delete(bench: Bench) -> None:
    for _ in range(2):
        publish(bench.other, force=True)
    bench.store.delete_version("tiny", 1)
    bench.at["delete.draft.sync"] = lambda: bench.other.set_alias("tiny", "prod", 2)
    with pytest.raises(FailedPrecondition):
        bench.store.delete_version("tiny", 2)


def _alias(bench: Bench) -> None:
    publish(bench.other)
    bench.store.set_alias("tiny", "prod", 1)


def _lease(bench: Bench) -> None:
    publish(bench.other)
    bench.store.lease("tiny", 1).release()


def _begin_deletions(bench: Bench) -> int:
    """Two versions, both hidden by a deleter that died before it looked again. The newer, returned, has an alias."""
    for _ in range(2):
        version = publish(bench.other, force=True).manifest.version
        bench.other.lease("tiny", version)
    _die_deleting(bench, version - 1, lambda: None)
    _die_deleting(bench, version, lambda: bench.other.set_alias("tiny", "prod", version))
    return version


def _die_deleting(bench: Bench, version: int, meanwhile: Callable[[], object]) -> None:
    at = {"delete.draft.sync": meanwhile, "delete.sync": _die}
    dying = EngineStore(bench.root, failpoint=lambda label: at.get(label, lambda: None)(), clock=lambda: bench.now)
    with pytest.raises(_Died):
        dying.delete_version("tiny", version)


def _collect(bench: Bench) -> None:
    version = _begin_deletions(bench)
    bench.now += 3 * LEASE_SECONDS
    assert bench.store.collect().removed == (("tiny", version - 1),)
    assert bench.store.resolve("tiny", "prod").version == version
    bench.other.delete_alias("tiny", "prod")
    bench.other.delete_version("tiny", version)
    bench.now += 3 * LEASE_SECONDS
    assert bench.store.collect().blobs == 1


def _recover(bench: Bench) -> None:
    for step in ("publish.manifest.write", "publish.claim.owner", "publish.tree.sync", "publish.rename"):
        writer = start_writer(bench.root, step)
        writer.join(60)

    def live_owner() -> None:
        owner = bench.root / "engines" / "tiny" / "claims" / "1" / "owner"
        owner.unlink()
        owner.write_text(new_token())

    bench.at["recover.claim.tombstone"] = live_owner
    assert bench.store.recover().completed == 1
    version = _begin_deletions(bench)
    for number in (version, version - 1):
        (bench.root / "engines" / "tiny" / "tombstones" / str(number)).write_text(dead_token())
    (bench.root / "leases" / "tiny.99.used").touch()
    bench.store.recover()
    assert bench.store.resolve("tiny", "prod").version == version


OPERATIONS = {
    "stage": _publish,
    "publish": _publish,
    "discard": _discard,
    "delete": _delete,
    "alias": _alias,
    "collect": _collect,
    "recover": _recover,
    "lease": _lease,
}


def test_the_table_names_each_label_once() -> None:
    assert len(LABELS) == sum(map(len, STEPS.values()))
    assert OPERATIONS.keys() == STEPS.keys()


@pytest.mark.parametrize("operation", STEPS)
def test_an_operation_passes_the_labels_of_the_table_and_no_others(tmp_path: Path, operation: str) -> None:
    bench = Bench(tmp_path / "store")
    OPERATIONS[operation](bench)
    assert set(STEPS[operation]) <= bench.labels <= LABELS
    assert not bench.at


def test_nothing_is_written_but_through_the_disk() -> None:
    """Calls that change files stand in disk.py alone."""
    writing = ("os.replace", "os.rename", "os.link", ".unlink(", ".mkdir(", ".touch(", ".chmod(", "os.utime", "rmtree")
    for path in Path(engine_store.__file__).parent.glob("*.py"):
        if path.name != "disk.py":
            lines = [line for line in path.read_text().splitlines() if "disk" not in line]
            assert not [line for line in lines if any(call in line for call in writing)], path.name
