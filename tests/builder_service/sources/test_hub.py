from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from builder_service.job import SourceSpec
from builder_service.sources import open_checkpoint
from enginehouse.errors import InvalidArgument, NotFound, Unavailable

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def no_network(monkeypatch):
    """The hub at a port that nobody listens on."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def fill_cache(cache: Path, checkpoint: Path, repo: str = "owner/name") -> None:
    """Lays a checkpoint out as the hub's client caches it."""
    root = cache / "hub" / f"models--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    (root / "blobs").mkdir(parents=True)
    (root / "refs").mkdir()
    snapshot.mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    for number, file in enumerate(sorted(checkpoint.iterdir())):
        shutil.copy(file, root / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")


@pytest.mark.parametrize("revision", ["", "main", COMMIT])
def test_a_cached_repository_opens_offline_and_is_pinned_to_its_commit(make_checkpoint, tmp_path, revision):
    fill_cache(tmp_path / "cache", make_checkpoint())
    spec = SourceSpec(kind="hub", repo="owner/name", revision=revision)
    checkpoint = open_checkpoint(spec, tmp_path / "cache", offline=True)
    assert checkpoint.origin.kind == "hub"
    assert checkpoint.origin.location == "owner/name"
    assert checkpoint.origin.revision == COMMIT
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.digest(lambda *_: None).startswith("sha256:")


def test_a_cached_gguf_file_opens_offline(write_gguf, make_model, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    shutil.copy(write_gguf(make_model("llama"), "llama"), files / "model.gguf")
    fill_cache(tmp_path / "cache", files)
    spec = SourceSpec(kind="hub", repo="owner/name", file="model.gguf")
    checkpoint = open_checkpoint(spec, tmp_path / "cache", offline=True)
    assert checkpoint.origin.location == "owner/name/model.gguf"
    assert checkpoint.origin.revision == COMMIT


def test_offline_without_a_cached_copy_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="offline") as caught:
        open_checkpoint(SourceSpec(kind="hub", repo="owner/name"), tmp_path, offline=True)
    assert caught.value.reason == "NOT_IN_CACHE"


@pytest.mark.parametrize("file", ["", pytest.param("model.gguf", marks=pytest.mark.long)])
def test_an_unreachable_hub_is_unavailable(tmp_path, no_network, file):
    with pytest.raises(Unavailable, match="cannot be reached") as caught:
        open_checkpoint(SourceSpec(kind="hub", repo="owner/name", file=file), tmp_path)
    assert caught.value.reason == "HUB_UNREACHABLE"


def test_a_bad_repository_id_is_an_invalid_argument(tmp_path):
    with pytest.raises(InvalidArgument, match="owner/name"):
        open_checkpoint(SourceSpec(kind="hub", repo="../../etc"), tmp_path, offline=True)


def test_a_growing_download_is_reported(tmp_path, monkeypatch):
    from builder_service.sources import hub

    monkeypatch.setattr(hub, "POLL_SECONDS", 0.01)
    (tmp_path / "old").write_bytes(b"before")
    seen: list[int] = []
    with hub._watched(tmp_path, lambda done, total: seen.append(done)):
        (tmp_path / "part").write_bytes(b"x" * 500)
        (tmp_path / "link").symlink_to("part")
        deadline = time.monotonic() + 5
        while 500 not in seen:
            assert time.monotonic() < deadline
            time.sleep(0.01)
