from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_store import EngineStore
from engine_store.names import is_file_path
from enginehouse.errors import Aborted, DataLoss, EnginehouseError, FailedPrecondition, InvalidArgument, NotFound
from tests.engine_store.writing import publish

SMALL = 1 << 12


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_latest_is_the_highest_number_and_aliases_and_numbers_resolve(store: EngineStore) -> None:
    for key in ("a", "b", "c"):
        publish(store, key=key, size=SMALL)
    store.set_alias("tiny", "prod", 2)
    assert [store.resolve("tiny", ref).version for ref in ("latest", "prod", "1")] == [3, 2, 1]
    assert [manifest.version for manifest in store.list_versions("tiny")] == [3, 2, 1]


def test_engines_are_listed_by_name(store: EngineStore) -> None:
    assert store.list_engines() == []
    for engine in ("b", "a"):
        publish(store, engine, size=SMALL)
    (store.root / "engines" / "lost+found").mkdir()
    assert store.list_engines() == ["a", "b"]


@pytest.mark.parametrize("name", ["", "A", "-a", "a-", "a/b", "..", "a" * 64, "a_b", "1a", "a\n", "ä"])
def test_bad_ids_are_refused_everywhere(store: EngineStore, name: str) -> None:
    publish(store, size=SMALL)
    calls = [
        lambda: store.get(name, 1),
        lambda: store.resolve(name),
        lambda: store.lease(name, 1),
        lambda: store.list_aliases(name),
        lambda: store.set_alias("tiny", name, 1),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument) as caught:
            call()
        assert caught.value.reason == "INVALID_RESOURCE_ID"


def test_an_alias_moves_only_with_the_etag_that_was_read(store: EngineStore) -> None:
    for key in ("a", "b"):
        publish(store, key=key, size=SMALL)
    first = store.set_alias("tiny", "prod", 1, etag="0")
    second = store.set_alias("tiny", "prod", 2, etag=first.etag)
    for stale in (first.etag, "0", "x"):
        with pytest.raises(Aborted) as caught:
            store.set_alias("tiny", "prod", 1, etag=stale)
        assert caught.value.reason == "ETAG_MISMATCH"
    assert store.list_aliases("tiny") == [second]


def test_a_deleted_alias_is_gone_and_can_be_made_again(store: EngineStore) -> None:
    publish(store, size=SMALL)
    alias = store.set_alias("tiny", "prod", 1)
    with pytest.raises(Aborted):
        store.delete_alias("tiny", "prod", "77")
    store.delete_alias("tiny", "prod", alias.etag)
    assert store.list_aliases("tiny") == []
    for call in (lambda: store.resolve("tiny", "prod"), lambda: store.delete_alias("tiny", "prod")):
        with pytest.raises(NotFound) as caught:
            call()
        assert caught.value.reason == "ALIAS_NOT_FOUND"
    assert store.set_alias("tiny", "prod", 1, etag="0").etag != alias.etag


def test_of_many_writers_with_one_etag_one_wins(store: EngineStore) -> None:
    publish(store, size=SMALL)
    alias = store.set_alias("tiny", "prod", 1)

    def move(_: int) -> bool:
        try:
            store.set_alias("tiny", "prod", 1, etag=alias.etag)
        except Aborted:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(move, range(16))) == 1


def test_many_writers_without_an_etag_all_count(store: EngineStore) -> None:
    publish(store, size=SMALL)
    with ThreadPoolExecutor(8) as pool:
        etags = {alias.etag for alias in pool.map(lambda _: store.set_alias("tiny", "prod", 1), range(16))}
    assert etags == {str(number) for number in range(1, 17)}


def test_latest_is_reserved_and_aliases_need_a_version(store: EngineStore) -> None:
    publish(store, size=SMALL)
    with pytest.raises(InvalidArgument) as caught:
        store.set_alias("tiny", "latest", 1)
    assert caught.value.reason == "RESERVED_ALIAS"
    with pytest.raises(NotFound):
        store.set_alias("tiny", "prod", 2)


def test_a_deleted_version_is_hidden_at_once_and_its_number_is_never_reused(store: EngineStore) -> None:
    publish(store, size=SMALL)
    store.delete_version("tiny", 1)
    assert store.list_engines() == []
    assert store.find("tiny", "k1") is None
    with pytest.raises(NotFound):
        store.resolve("tiny", "1")
    with pytest.raises(NotFound):
        store.delete_version("tiny", 1)
    assert publish(store, size=SMALL).manifest.version == 2


def test_a_version_with_an_alias_is_not_deleted(store: EngineStore) -> None:
    publish(store, size=SMALL)
    store.set_alias("tiny", "prod", 1)
    with pytest.raises(FailedPrecondition, match="prod"):
        store.delete_version("tiny", 1)
    assert store.get("tiny", 1).version == 1


def test_files_go_two_lease_times_after_deletion_and_not_while_a_reader_renews(tmp_path: Path) -> None:
    clock = Clock()
    store = EngineStore(tmp_path / "store", clock=clock)
    publish(store)
    folder = store.version_path("tiny", 1)
    lease = store.lease("tiny", 1)
    store.delete_version("tiny", 1)
    for _ in range(5):
        clock.now += 45
        lease.renew()
        assert store.collect().waiting == (("tiny", 1),)
    assert (folder / "engine.json").exists()
    lease.release()
    collected = store.collect()
    assert (collected.removed, collected.waiting, collected.blobs) == ((("tiny", 1),), (), 1)
    assert not folder.exists()
    assert list((store.root / "staging").iterdir()) == []


def test_a_silent_reader_loses_its_lease_after_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    store = EngineStore(tmp_path / "store", clock=clock)
    publish(store, size=SMALL)
    store.lease("tiny", 1)
    store.delete_version("tiny", 1)
    clock.now += 119
    assert store.collect().removed == ()
    clock.now += 1
    assert store.collect().removed == (("tiny", 1),)


def test_blobs_that_a_version_uses_stay(store: EngineStore) -> None:
    publish(store)
    collected = store.collect()
    assert (collected.removed, collected.evicted, collected.blobs, collected.freed_bytes) == ((), (), 0, 0)
    store.verify("tiny", 1)


def test_a_lease_on_nothing_is_refused_and_leaves_nothing(store: EngineStore) -> None:
    with pytest.raises(NotFound):
        store.lease("tiny", 1)
    assert list((store.root / "leases").iterdir()) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "link"])
def test_verify_names_the_damaged_file(store: EngineStore, damage: str) -> None:
    publish(store, size=SMALL)
    path = store.version_path("tiny", 1) / "weights" / "rank0.safetensors"
    data = path.read_bytes()
    path.unlink()
    if damage == "flip":
        path.write_bytes(data[:-1] + b"!")
    elif damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "link":
        (store.root / "outside").write_bytes(data)
        path.symlink_to(store.root / "outside")
    with pytest.raises(DataLoss) as caught:
        store.verify("tiny", 1)
    assert caught.value.metadata["file"] == "weights/rank0.safetensors"


def _rewrite(store: EngineStore, **changes: object) -> None:
    path = store.version_path("tiny", 1) / "engine.json"
    record = {**json.loads(path.read_bytes()), **changes}
    path.chmod(0o644)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema": 2, "new_field": 1}, "ENGINE_SCHEMA"),
        ({"name": "other"}, "MANIFEST_DAMAGED"),
        ({"files": 3}, "MANIFEST_DAMAGED"),
        ({"surprise": 3}, "MANIFEST_DAMAGED"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(store: EngineStore, changes: dict[str, object], reason: str) -> None:
    publish(store, size=SMALL)
    _rewrite(store, **changes)
    with pytest.raises(EnginehouseError) as caught:
        store.get("tiny", 1)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "path", ["../1/engine.json", "/etc/passwd", "a/../../b", "a//b", "", ".", "a\\b", "a\x00b", "-x"]
)
def test_paths_of_a_manifest_never_lead_out_of_the_version(store: EngineStore, path: str) -> None:
    publish(store, size=SMALL)
    _rewrite(store, files=[{"path": path, "size_bytes": 1, "digest": "sha256-64m:0"}])
    with pytest.raises(DataLoss) as caught:
        store.verify("tiny", 1)
    assert caught.value.reason == "MANIFEST_PATH"


def test_a_linked_folder_does_not_lead_out_of_the_version(store: EngineStore, tmp_path: Path) -> None:
    publish(store, size=SMALL)
    folder = store.version_path("tiny", 1) / "weights"
    folder.rename(tmp_path / "weights")
    folder.symlink_to(tmp_path / "weights")
    with pytest.raises(DataLoss, match="missing"):
        store.verify("tiny", 1)


@given(st.text(max_size=40))
def test_accepted_file_paths_stay_below_their_folder(path: str) -> None:
    if is_file_path(path):
        assert Path("/base", path).resolve().is_relative_to("/base")
        assert Path("/base", path).resolve() == Path("/base", path)


def test_reading_writes_nothing(tmp_path: Path) -> None:
    store = EngineStore(tmp_path / "none")
    assert store.list_engines() == []
    assert store.find("tiny", "k1") is None
    assert store.list_aliases("tiny") == []
    assert not (tmp_path / "none").exists()
