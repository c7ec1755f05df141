"""Damage is found before anything is parsed, or, in the weights, before what was loaded is trusted."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_store import EngineStore, Manifest, digests
from engine_store.checking import checked_while_loading
from enginehouse.errors import DataLoss, FailedPrecondition

from .writing import manifest as make_manifest
from .writing import publish

WEIGHTS = "weights/rank0.safetensors"


@pytest.fixture
def version(store: EngineStore) -> Manifest:
    return publish(store, size=1 << 16).manifest


@pytest.fixture
def folder(store: EngineStore, version: Manifest) -> Path:
    return store.version_path("tiny", version.version)


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replaces a file, whatever is linked to it."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(change(path.read_bytes()))
    fresh.replace(path)


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def damage_of(error: pytest.ExceptionInfo[DataLoss]) -> tuple[str, str]:
    assert error.value.reason == "FILE_DAMAGED"
    assert (error.value.metadata["engine"], error.value.metadata["version"]) == ("tiny", "1")
    assert error.value.metadata["file"] in error.value.message
    return error.value.metadata["file"], error.value.metadata["problem"]


def test_a_whole_version_is_loaded_and_every_byte_of_it_checked(store: EngineStore, version: Manifest) -> None:
    seen: list[tuple[int, int]] = []
    with checked_while_loading(store, version, lambda done, total: seen.append((done, total))):
        pass
    total = sum(file.size_bytes for file in version.files)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("path", "change", "problem"),
    [
        ("graph.json", flip, "digest"),
        ("graph.json", lambda data: data + b" ", "size"),
        ("engine.json", lambda data: data.replace(b"101", b"102"), "digest"),
        (WEIGHTS, lambda data: data[:-1], "size"),
        (WEIGHTS, lambda data: b"", "size"),
    ],
    ids=["flipped graph", "longer graph", "changed manifest", "cut weights", "empty weights"],
)
def test_damage_that_is_no_content_of_weights_is_found_before_loading_begins(
    store: EngineStore, version: Manifest, folder: Path, path: str, change: Callable[[bytes], bytes], problem: str
) -> None:
    rewrite(folder / path, change)
    with pytest.raises(DataLoss) as error, checked_while_loading(store, version):
        pytest.fail("loading began")
    assert damage_of(error) == (path, problem)
    assert error.value.metadata["expected"] != error.value.metadata["found"]


@pytest.mark.parametrize("path", ["graph.json", WEIGHTS])
def test_a_missing_file_is_found_before_loading_begins(
    store: EngineStore, version: Manifest, folder: Path, path: str
) -> None:
    (folder / path).unlink()
    with pytest.raises(DataLoss) as error, checked_while_loading(store, version):
        pytest.fail("loading began")
    assert damage_of(error) == (path, "missing")


def test_a_file_that_the_manifest_does_not_list_is_refused(store: EngineStore, version: Manifest, folder: Path) -> None:
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "chat_template.jinja").write_text("{{ 1 }}")
    with pytest.raises(DataLoss) as error, checked_while_loading(store, version):
        pytest.fail("loading began")
    assert damage_of(error) == ("tokenizer/chat_template.jinja", "unexpected")


def test_flipped_weights_are_read_and_then_refused(store: EngineStore, version: Manifest, folder: Path) -> None:
    rewrite(folder / WEIGHTS, flip)
    loaded = False
    with pytest.raises(DataLoss) as error, checked_while_loading(store, version):
        loaded = True
    assert loaded
    assert damage_of(error) == (WEIGHTS, "digest")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: rewrite(path, flip),
        lambda path: rewrite(path, lambda data: data),
        lambda path: path.unlink(),
        lambda path: os.truncate(path, 5),
        lambda path: path.write_bytes(flip(path.read_bytes())),
        lambda path: (path.rename(path.with_name("aside")), path.symlink_to("aside")),
    ],
    ids=["replaced", "replaced by its like", "removed", "truncated", "written", "made a link"],
)
@pytest.mark.parametrize("path", ["graph.json", WEIGHTS])
def test_a_file_that_changes_while_it_is_loaded_is_refused(
    store: EngineStore, version: Manifest, folder: Path, path: str, change: Callable[[Path], object]
) -> None:
    with pytest.raises(DataLoss) as error, checked_while_loading(store, version):
        change(folder / path)
    assert damage_of(error)[0] == path


def test_a_version_that_shares_the_files_may_be_published_meanwhile(store: EngineStore) -> None:
    version = publish(store, size=3 << 20).manifest
    with checked_while_loading(store, version), store.stage() as staging:
        shutil.copytree(store.version_path("tiny", 1), staging.path, dirs_exist_ok=True)
        (staging.path / "engine.json").unlink()
        assert staging.publish(make_manifest(key="k2")).manifest.version == 2
    weights = [store.version_path("tiny", number) / WEIGHTS for number in (1, 2)]
    assert weights[0].samefile(weights[1])


def test_damage_explains_what_the_loader_could_not_read(store: EngineStore, version: Manifest, folder: Path) -> None:
    rewrite(folder / WEIGHTS, flip)
    with pytest.raises(DataLoss) as error, checked_while_loading(store, version):
        raise DataLoss("no header", reason="ENGINE_DAMAGED")
    assert damage_of(error) == (WEIGHTS, "digest")


def test_what_a_whole_version_lacks_stays_the_loaders_error(store: EngineStore, version: Manifest) -> None:
    with pytest.raises(DataLoss) as error, checked_while_loading(store, version):
        raise DataLoss("another shape", reason="ENGINE_DAMAGED")
    assert error.value.reason == "ENGINE_DAMAGED"


def test_a_loader_that_fails_for_another_reason_waits_for_no_digest(
    store: EngineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "PIECE", 1 << 10)
    with store.stage() as staging:
        (staging.path / "weights").mkdir()
        (staging.path / WEIGHTS).write_bytes(bytes(64 << 10))
        version = staging.publish(make_manifest()).manifest
    held, pieces = threading.Event(), 0

    def progress(done: int, total: int) -> None:
        nonlocal pieces
        pieces += 1
        assert held.wait(10)

    threading.Timer(0.1, held.set).start()
    with pytest.raises(FailedPrecondition), checked_while_loading(store, version, progress):
        raise FailedPrecondition("no memory", reason="KV_CACHE_TOO_SMALL")
    assert pieces <= 2


def test_progress_can_end_the_checking(store: EngineStore, version: Manifest) -> None:
    class Enough(Exception):
        pass

    def progress(done: int, total: int) -> None:
        raise Enough

    with pytest.raises(Enough), checked_while_loading(store, version, progress):
        pass
