from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builder_service.job import SourceSpec
from builder_service.sources import open_checkpoint
from enginehouse.errors import InvalidArgument, NotFound

COMMIT = "0123456789abcdef0123456789abcdef01234567"


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


def test_a_bad_repository_id_is_an_invalid_argument(tmp_path):
    with pytest.raises(InvalidArgument, match="owner/name"):
        open_checkpoint(SourceSpec(kind="hub", repo="../../etc"), tmp_path, offline=True)
