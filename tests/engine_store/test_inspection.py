"""A manifest that is not as it was published is found; a damaged version stands in nobody's way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_store import EngineStore
from engine_store.inspection import Problem
from enginehouse.errors import DataLoss, NotFound
from tests.engine_store.writing import publish

SMALL = 1 << 12


def _write(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def _label(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "labels": {"x": "y"}}).encode()


def _other_key(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "build_key": "k9"}).encode()


@pytest.mark.parametrize("change", [_label, _other_key, lambda data: data + b"\n"])
def test_a_changed_manifest_is_found_and_its_version_no_longer_carries_its_key(
    store: EngineStore, change: Callable[[bytes], bytes]
) -> None:
    publish(store, size=SMALL)
    path = store.version_path("tiny", 1) / "engine.json"
    assert store.inspect("tiny", 1) == []
    assert store.check_manifest(store.get("tiny", 1)) is None
    _write(path, change(path.read_bytes()))
    assert [problem[:2] for problem in store.inspect("tiny", 1)] == [("engine.json", "digest")]
    assert isinstance(store.check_manifest(store.get("tiny", 1)), Problem)
    with pytest.raises(DataLoss, match=r"engine\.json"):
        store.verify("tiny", 1)
    assert store.find("tiny", "k1") is None
    assert store.find("tiny", "k9") is None
    assert publish(store, size=SMALL).manifest.version == 2, "it is built again"
    found = store.find("tiny", "k1")
    assert found is not None
    assert found.version == 2


def test_find_prefers_an_older_version_to_a_damaged_one(store: EngineStore) -> None:
    for _ in range(2):
        publish(store, size=SMALL, force=True)
    _write(store.version_path("tiny", 2) / "engine.json", b"{}")
    found = store.find("tiny", "k1")
    assert found is not None
    assert found.version == 1


@pytest.mark.parametrize("data", [b"", b"{}", b'{"schema": 99}', b"\xff"])
def test_a_version_whose_manifest_cannot_be_read_can_be_deleted(store: EngineStore, data: bytes) -> None:
    publish(store, size=SMALL)
    _write(store.version_path("tiny", 1) / "engine.json", data)
    gone = store.delete_version("tiny", 1)
    assert (gone.name, gone.version, gone.files) == ("tiny", 1, ())
    assert store.version_numbers("tiny") == []
    assert [deleted.manifest.version for deleted in store.deleted_versions("tiny")] == [1]
    with pytest.raises(NotFound):
        store.delete_version("tiny", 1)


def test_latest_is_the_next_one_when_the_newest_is_deleted_meanwhile(
    store: EngineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        publish(store, size=SMALL, force=True)
    store.delete_version("tiny", 3)
    monkeypatch.setattr(store._reader, "numbers", lambda engine: [3, 2, 1])  # as they were read before
    assert store.resolve("tiny").version == 2
    assert [manifest.version for manifest in store.list_versions("tiny")] == [2, 1]


@pytest.mark.parametrize(
    "damage", [b"{", b'{"schema": 1, "x": ' + b"[" * 100_000, b'{"schema": 1, "name": "\xff"}', b"[]"]
)
def test_a_manifest_of_any_bytes_is_data_loss(store: EngineStore, damage: bytes) -> None:
    publish(store, size=SMALL)
    _write(store.root / "engines" / "tiny" / "versions" / "1" / "engine.json", damage)
    with pytest.raises(DataLoss):
        store.get("tiny", 1)
    with pytest.raises(DataLoss):
        store.inspect("tiny", 1)
    store.collect()


@pytest.mark.parametrize("damage", [b"{", b'{"version": 1, "x": ' + b"[" * 100_000, b'{"version": "\xff"}', b"[]"])
def test_a_record_of_any_bytes_is_data_loss(store: EngineStore, damage: bytes) -> None:
    publish(store, size=SMALL)
    store.set_alias("tiny", "stable", 1)
    for record in (store.root / "engines" / "tiny" / "aliases").glob("*/1"):
        _write(record, damage)
    with pytest.raises(DataLoss):
        store.get_alias("tiny", "stable")


def test_numbers_are_listed_without_reading_a_manifest(store: EngineStore) -> None:
    for _ in range(3):
        publish(store, size=SMALL, force=True)
    for number in (1, 2, 3):
        _write(store.version_path("tiny", number) / "engine.json", b"damaged")
        if number == 1:
            store.delete_version("tiny", 1)
    assert store.list_engines() == ["tiny"]
    assert store.version_numbers("tiny") == [3, 2]
    assert store.deleted_numbers("tiny") == [1]
    deleted = store.get_deleted("tiny", 1)
    assert deleted is not None
    assert deleted.manifest.version == 1
    assert store.get_deleted("tiny", 2) is None
