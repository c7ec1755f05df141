"""Checkpoints: a Hugging Face directory, a hub repository, a GGUF file."""

from __future__ import annotations

from pathlib import Path

from builder_service.job import SourceSpec
from builder_service.sources.base import Checkpoint, Progress
from builder_service.sources.digest import DigestCache
from builder_service.sources.gguf import GgufCheckpoint
from builder_service.sources.huggingface import HuggingFaceCheckpoint
from engine_store.manifest import Source
from enginehouse.errors import unsupported_field

__all__ = [
    "Checkpoint",
    "DigestCache",
    "GgufCheckpoint",
    "HuggingFaceCheckpoint",
    "Progress",
    "open_checkpoint",
    "open_dummy",
]


def _silent(done: int, total: int) -> None:
    """Progress that nobody watches."""


def open_checkpoint(spec: SourceSpec, cache: Path, offline: bool = False, progress: Progress = _silent) -> Checkpoint:
    """Opens and checks a checkpoint; a hub source is downloaded first.

    Args:
        spec: the source; local paths are absolute and already allowed.
        cache: the builder's directory for downloads and digests.
        offline: never use the network.
        progress: of a download, in bytes.

    Raises:
        EnginehouseError: see `HuggingFaceCheckpoint`, `GgufCheckpoint` and `hub.download`.
    """
    digests = DigestCache(cache / "digests")
    if spec.kind == "huggingface":
        _refuse(spec, "repo", "revision", "file")
        return HuggingFaceCheckpoint(Path(spec.path), digests)
    if spec.kind == "gguf" and not spec.repo:
        _refuse(spec, "revision", "file")
        return GgufCheckpoint(Path(spec.path), digests)
    return _open_hub(spec, cache, offline, progress)


def open_dummy(spec: SourceSpec, cache: Path, offline: bool, progress: Progress, seed: int) -> Checkpoint:
    """A checkpoint with the source's config and tokenizer, and random weights. Of a hub source only these small files
    are downloaded.

    Raises:
        Unimplemented: a GGUF source, whose config lies in the file of its weights.
    """
    from builder_service.sources.dummy import DummyCheckpoint

    if spec.kind == "gguf" or spec.file:
        raise unsupported_field("weights", "is dummy, which needs a config.json, and a GGUF file has none")
    if spec.kind == "huggingface":
        _refuse(spec, "repo", "revision")
        return DummyCheckpoint(Path(spec.path), seed)
    from builder_service.sources.hub import download

    _refuse(spec, "path")
    got = download(spec, cache / "hub", offline, progress, weights=False)
    return DummyCheckpoint(got.path, seed, Source(kind="hub", location=spec.repo, revision=got.commit))


def _open_hub(spec: SourceSpec, cache: Path, offline: bool, progress: Progress) -> Checkpoint:
    from builder_service.sources.hub import download

    _refuse(spec, "path")
    got = download(spec, cache / "hub", offline, progress)
    stated = {path: f"sha256:{file.blob}" for path, file in got.digests.items()}
    digests = DigestCache(cache / "digests", stated)
    location = f"{spec.repo}/{spec.file}" if spec.file else spec.repo
    origin = Source(kind="hub", location=location, revision=got.commit)
    if spec.file:
        return GgufCheckpoint(got.path, digests, origin)
    return HuggingFaceCheckpoint(got.path, digests, origin)


def _refuse(spec: SourceSpec, *fields: str) -> None:
    for field in fields:
        if getattr(spec, field):
            raise unsupported_field(f"source.{field}", f"does not apply to a source of kind {spec.kind}")
