"""What a build will need, by arithmetic on the checkpoint's config or tensor table: no torch, no weights read.

Measured with random checkpoints from 0.3 MB to 1 GB and SmolLM2 (GGUF): conversion holds little beyond its libraries;
verification holds the largest tensor and one layer in float32, the logits that it compares, and the tokenizer.
tests/builder_service/test_estimate.py compares the figures with real builds.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import NamedTuple

import msgspec

from builder_service.build.tokenizer_files import TOKENIZER_FILES
from builder_service.gguf_shapes import read_shapes
from builder_service.job import BuildJob
from builder_service.models import DecoderSpec, read_spec, weight_parts
from enginehouse.errors import EnginehouseError

_MIB = 1 << 20
_LIBRARIES = {"on": 330 * _MIB, "off": 300 * _MIB}
_TOKENIZER_GROWTH = 12
"""Bytes of memory for each byte of a tokenizer's files."""
_LOGITS_ROWS = 4 * 56
"""Tokens that verification compares, padded; their logits stand in memory three times."""
_SECONDS, _SECONDS_PER_BYTE = 6.0, {"on": 1 / 25e6, "off": 1 / 100e6}
_GGUF_SECONDS_PER_BYTE = 1 / 50e6
_GRAPH_BYTES_PER_LAYER = 6 << 10
_GGUF_TOKENIZER_BYTES_PER_TOKEN = 80
_MAX_CONFIG_BYTES = 1 << 20
_MAX_BYTES = 1 << 50
"""Of an estimate: a header may state shapes that no machine holds, nor an integer of the queue and the wire."""
_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}


class Estimate(NamedTuple):
    """Peak memory and disk in bytes, time in seconds."""

    memory_bytes: int
    disk_bytes: int
    seconds: float


class Needs(NamedTuple):
    """Counts of weights: of the engine, of its largest tensor, of one layer. `vocab`: rows of the embedding."""

    weights: int
    largest: int
    layer: int
    vocab: int
    layers: int


class Found(NamedTuple):
    """A checkpoint on this machine: its counts, the bytes of a weight in it, of its tokenizer; whether it is GGUF."""

    needs: Needs
    width: int
    tokenizer_bytes: int
    gguf: bool = False


def estimate(job: BuildJob) -> Estimate | None:
    """The estimate for a checkpoint on this machine. None where nothing is known: it is not here (yet, or any more),
    damaged, or of a kind that is not built; the build itself will say what is wrong."""
    try:
        found = _found(job, _local(job))
    except (OSError, EnginehouseError, ValueError, RecursionError):
        return None
    made = None if found is None else estimate_of(job, found)
    return made if made and max(made.memory_bytes, made.disk_bytes) <= _MAX_BYTES else None


def estimate_of(job: BuildJob, found: Found) -> Estimate:
    """The arithmetic alone."""
    needs = found.needs
    verify = "off" if job.weights == "dummy" else job.verify
    width = found.width if job.build.dtype == "auto" else _WIDTHS[job.build.dtype]
    memory = _LIBRARIES[verify]
    if verify == "on":
        memory += 4 * (needs.largest + needs.layer + 3 * _LOGITS_ROWS * needs.vocab)
        memory += _TOKENIZER_GROWTH * found.tokenizer_bytes
    weights = needs.weights * width
    seconds = _SECONDS + weights * (_SECONDS_PER_BYTE[verify] + found.gguf * _GGUF_SECONDS_PER_BYTE)
    return Estimate(memory, weights + found.tokenizer_bytes + _GRAPH_BYTES_PER_LAYER * (needs.layers + 1), seconds)


def needs_of(spec: DecoderSpec) -> Needs:
    """The counts of a decoder; one layer is looked at, the others are like it."""
    one = weight_parts(dataclasses.replace(spec, num_layers=1))
    counts = {name: math.prod(part.shape) for name, part in one.items()}
    largest = max(math.prod(shape) for part in one.values() for shape in part.shapes)
    layer = sum(count for name, count in counts.items() if name.startswith("layers."))
    weights = sum(counts.values()) + layer * (spec.num_layers - 1)
    return Needs(weights, largest, layer, spec.vocab_size, spec.num_layers)


def _local(job: BuildJob) -> Path | None:
    """Where the checkpoint lies: for the hub, in the cache of its client."""
    source = job.source
    if not source.repo:
        return Path(source.path)
    repo, revision = Path(job.cache, "hub", f"models--{source.repo.replace('/', '--')}"), source.revision or "main"
    ref = repo / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    path = repo / "snapshots" / commit / source.file
    return path if path.exists() else None


def _found(job: BuildJob, path: Path | None) -> Found | None:
    if path is None:
        return None
    if path.is_file():
        return _gguf(path)
    config = _config(path / "config.json")
    needs = needs_of(read_spec(config))
    tokenizer = sum(file.stat().st_size for name in TOKENIZER_FILES if (file := path / name).is_file())
    stated = config.get("dtype") or config.get("torch_dtype")
    width = _WIDTHS.get(stated, 2) if isinstance(stated, str) else 2
    if job.weights == "real":  # what is stored counts, whatever the config says
        stored = sum(file.stat().st_size for file in path.glob("*.safetensors"))
        width = width if not stored else 4 if stored > 3 * needs.weights else 2
    return Found(needs, width, tokenizer)


def _config(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        return msgspec.json.decode(file.read(_MAX_CONFIG_BYTES), type=dict[str, object])


def _gguf(path: Path) -> Found | None:
    shapes = read_shapes(path)
    counts = {name: math.prod(shape) for name, shape in shapes.items()}
    if not counts:
        return None
    layers = {name.split(".")[1] for name in counts if name.startswith("blk.")}
    layer = sum(count for name, count in counts.items() if name.startswith("blk.0."))
    vocab = shapes.get("token_embd.weight", (0, 0))[-1]
    needs = Needs(sum(counts.values()), max(counts.values()), layer, vocab, len(layers))
    width = 4 if path.stat().st_size > 3.9 * needs.weights else 2
    return Found(needs, width, _GGUF_TOKENIZER_BYTES_PER_TOKEN * vocab, gguf=True)
