from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder_service.estimate import estimate
from builder_service.job import BuildConfig, BuildJob, SourceSpec


def _job(path: Path | str, dtype: str = "auto", verify: str = "on") -> BuildJob:
    source = SourceSpec(kind="huggingface", path=str(path))
    return BuildJob(engine_id="e", store="/s", cache="/c", source=source, build=BuildConfig(dtype=dtype), verify=verify)


@pytest.mark.parametrize(("dtype", "disk"), [("auto", 1000), ("bfloat16", 500), ("float32", 1000)])
def test_disk_follows_the_width_of_a_weight(tmp_path: Path, dtype: str, disk: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "float32"}))
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    found = estimate(_job(tmp_path, dtype))
    assert found is not None
    assert found.disk_bytes == disk
    assert found.memory_bytes > disk


def test_verification_takes_time(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"x" * 1_000_000)
    on, off = (estimate(_job(tmp_path / "model.gguf", verify=verify)) for verify in ("on", "off"))
    assert on is not None
    assert off is not None
    assert on.seconds > off.seconds
    assert on.disk_bytes > 1_000_000


@pytest.mark.parametrize("config", [b"", b"[]", b"\xff", b'{"dtype": 3}'])
def test_an_unreadable_config_is_no_error_here(tmp_path: Path, config: bytes) -> None:
    (tmp_path / "config.json").write_bytes(config)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    found = estimate(_job(tmp_path, "bfloat16"))
    assert found is not None
    assert found.disk_bytes == 1000


@pytest.mark.parametrize("path", ["", "/nowhere"])
def test_what_is_not_here_is_not_estimated(path: str) -> None:
    assert estimate(_job(path)) is None


def test_a_checkpoint_that_cannot_be_looked_at_is_no_error_here(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert estimate(_job(tmp_path, "bfloat16")) is not None
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "nowhere")
    assert estimate(_job(tmp_path)) is None
    (tmp_path / "loop").symlink_to("loop")
    assert estimate(_job(tmp_path / "loop")) is None
    assert estimate(_job(tmp_path / ("x" * 300))) is None
