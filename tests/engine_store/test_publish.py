from __future__ import annotations

import contextlib
import errno
import signal
from pathlib import Path

import pytest

from engine_store import EngineStore
from enginehouse.errors import DataLoss, Internal, NotFound, ResourceExhausted
from tests.engine_store.writing import BIG, PROCESSES, die_at, fill, manifest, publish, publish_rounds, start_writer


def _entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir()) if path.exists() else []


def test_a_published_version_is_complete_and_verifies(store: EngineStore) -> None:
    published = publish(store)
    assert (published.manifest.version, published.reused) == (1, False)
    assert store.get("tiny", 1) == published.manifest
    assert store.verify("tiny", 1) == (2, sum(file.size_bytes for file in published.manifest.files))
    assert _entries(store.root / "staging") == []


def test_the_same_key_is_found_instead_of_published_again(store: EngineStore) -> None:
    publish(store)
    assert publish(store).reused
    assert store.version_numbers("tiny") == [1]


def test_force_publishes_the_same_key_again_and_find_prefers_it(store: EngineStore) -> None:
    publish(store)
    assert publish(store, force=True).manifest.version == 2
    found = store.find("tiny", "k1")
    assert found is not None
    assert found.version == 2


def test_large_files_of_two_versions_are_one_inode(store: EngineStore) -> None:
    publish(store)
    publish(store, force=True)
    files = [store.version_path("tiny", n) / "weights" / "rank0.safetensors" for n in (1, 2)]
    assert files[0].stat().st_ino == files[1].stat().st_ino


def test_a_damaged_blob_spoils_no_later_version(store: EngineStore) -> None:
    publish(store)
    weights = store.version_path("tiny", 1) / "weights" / "rank0.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(b"x" * weights.stat().st_size)
    publish(store, force=True)
    store.verify("tiny", 2)
    with pytest.raises(DataLoss, match=r"rank0\.safetensors"):
        store.verify("tiny", 1)


def test_leaving_without_publishing_leaves_nothing(store: EngineStore) -> None:
    with store.stage() as staging:
        fill(staging.path, "k1", BIG)
    assert _entries(store.root / "staging") == []
    assert store.list_engines() == []


def test_links_in_the_staged_tree_are_refused(store: EngineStore) -> None:
    with store.stage() as staging:
        (staging.path / "graph.json").symlink_to("/etc/hostname")
        with pytest.raises(Internal) as caught:
            staging.publish(manifest())
    assert caught.value.reason == "STAGED_FILE_KIND"
    assert store.list_engines() == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_any_failing_step_publishes_nothing_or_everything(tmp_path: Path, code: int) -> None:
    """Fails the n-th durable step, n = 1, 2, ..., until a publish gets through without meeting it."""
    for step in range(1, 100):
        root = tmp_path / str(step)
        seen = 0

        def fail(label: str, step: int = step) -> None:
            nonlocal seen
            seen += 1
            if seen == step:
                raise OSError(code, label)

        store = EngineStore(root, failpoint=fail)
        with contextlib.suppress(ResourceExhausted if code == errno.ENOSPC else Internal):
            publish(store, size=1 << 20)
        for number in EngineStore(root).version_numbers("tiny"):
            EngineStore(root).verify("tiny", number)
        if seen < step:
            assert step > 30
            return
        again = publish(EngineStore(root), size=1 << 20)
        EngineStore(root).verify("tiny", again.manifest.version)
    pytest.fail("the steps never ended")


def test_a_failed_fsync_is_never_retried(tmp_path: Path) -> None:
    calls: list[str] = []

    def fail(label: str) -> None:
        calls.append(label)
        if label == "publish.file.sync":
            raise OSError(errno.EIO, label)

    with pytest.raises(Internal):
        publish(EngineStore(tmp_path / "s", failpoint=fail))
    assert calls.count("publish.file.sync") == 1
    assert _entries(tmp_path / "s" / "staging") == []


def test_a_decided_version_of_a_dead_writer_is_completed(store: EngineStore) -> None:
    """Between the record and the rename lies the decision: recovery and rivals alike must honour it."""
    writer = start_writer(store.root, "publish.rename")
    writer.join(60)
    assert writer.exitcode == -signal.SIGKILL
    assert store.find("tiny", "k1") is None
    assert publish(store).reused
    store.verify("tiny", 1)


def test_recovery_leaves_the_living_alone(store: EngineStore) -> None:
    with store.stage() as staging:
        fill(staging.path, "k1", BIG)
        assert store.recover() == (0, 0, 0)
        assert not staging.publish(manifest()).reused


@pytest.mark.parametrize("same", [True, False], ids=["same key", "different keys"])
def test_eight_processes_publish_at_once(tmp_path: Path, same: bool) -> None:
    """Each key ends up as one version, every number is whole, and a concurrent reader never sees less."""
    root, rounds, workers = tmp_path / "store", 3, 8
    results = PROCESSES.Queue()
    children = [PROCESSES.Process(target=publish_rounds, args=(root, n, rounds, same, results)) for n in range(workers)]
    for child in children:
        child.start()
    seen, store = [], EngineStore(root)
    while len(seen) < rounds * workers:
        seen.append(results.get(timeout=60))
        for number in store.version_numbers("tiny"):
            store.verify("tiny", number)
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    versions: dict[str, set[int]] = {}
    for key, number in seen:
        versions.setdefault(key, set()).add(number)
    assert len(versions) == (rounds if same else rounds * workers)
    assert all(len(numbers) == 1 for numbers in versions.values())
    assert len(store.version_numbers("tiny")) == len(versions)


def test_a_writer_killed_among_rivals_blocks_nobody(tmp_path: Path) -> None:
    root = tmp_path / "store"
    rivals = [start_writer(root, step) for step in (20, 34, 36)]
    published = publish(EngineStore(root))
    for rival in rivals:
        rival.join(60)
    store = EngineStore(root)
    store.recover()
    assert store.version_numbers("tiny") == [published.manifest.version]
    store.verify("tiny", published.manifest.version)


def test_an_unknown_version_is_not_found(store: EngineStore) -> None:
    with pytest.raises(NotFound) as caught:
        store.get("tiny", 1)
    assert caught.value.reason == "ENGINE_VERSION_NOT_FOUND"
    assert die_at(2)("any") is None
