"""What a build will make: the request with every default resolved and checked, and the key that names its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from builder_service.job import BuildConfig, BuildJob
from builder_service.models import DecoderSpec
from builder_service.sources import Checkpoint
from engine_ops.graph import OPSET
from engine_store.manifest import CacheGroup, Limits
from enginehouse.errors import InvalidArgument, unsupported_field

FORMAT = 1
"""Raised when the same request would give other bytes: the names or layout of weights, the files of a version."""
BLOCK_SIZES = (16, 32, 64, 128)
MAX_BATCH_SIZE = 1 << 16
MAX_NUM_TOKENS = 1 << 20
MAX_SEQ_LEN = 1 << 24
"""What a checkpoint's positions are cut to: block tables are as long as the longest sequence."""


class Plan(NamedTuple):
    """A resolved build."""

    dtype: str
    limits: Limits
    block_size: int


class SpecialIds(NamedTuple):
    """Ids that the manifest names."""

    eos: tuple[int, ...]
    bos: int | None
    pad: int | None


def make_plan(build: BuildConfig, checkpoint: Checkpoint, spec: DecoderSpec) -> Plan:
    """Resolves a request against a checkpoint.

    Raises:
        InvalidArgument: a value is out of its range; the message has the bounds.
    """
    _check("max_batch_size", build.max_batch_size, 1, MAX_BATCH_SIZE)
    _check("max_num_tokens", build.max_num_tokens, 1, MAX_NUM_TOKENS)
    max_seq_len = min(spec.max_positions, MAX_SEQ_LEN) if build.max_seq_len is None else build.max_seq_len
    _check("max_seq_len", max_seq_len, 2, spec.max_positions, " (the checkpoint's positions)")
    if build.tokens_per_block not in BLOCK_SIZES:
        choices = ", ".join(map(str, BLOCK_SIZES))
        message = f"`tokens_per_block` is {build.tokens_per_block}; choose one of {choices}."
        raise _bad("tokens_per_block", message, build.tokens_per_block)
    limits = Limits(max_batch_size=build.max_batch_size, max_num_tokens=build.max_num_tokens, max_seq_len=max_seq_len)
    return Plan(checkpoint.dtype if build.dtype == "auto" else build.dtype, limits, build.tokens_per_block)


def check_targets(job: BuildJob) -> None:
    """Refuses what this version does not build."""
    for target in job.targets:
        if target != "torch":
            raise unsupported_field(f"targets[{target}]", "is not built yet; ask for the target torch")
    if not job.targets:
        raise InvalidArgument("`targets` is empty; ask for torch.", reason="NO_TARGET", metadata={"field": "targets"})


def build_key(job: BuildJob, plan: Plan, source_digest: str, config: Mapping[str, Any]) -> str:
    """ "sha256:<hex>" over all that decides the engine's bytes for the torch target."""
    content = {
        "format": FORMAT,
        "opset": OPSET,
        "target": "torch",
        "source": source_digest,
        "config": config,
        "weights": job.weights,
        "dtype": plan.dtype,
        "limits": plan.limits,
        "block_size": plan.block_size,
    }
    return f"sha256:{hashlib.sha256(msgspec.json.encode(content, order='deterministic')).hexdigest()}"


def cache_groups(spec: DecoderSpec, plan: Plan) -> tuple[CacheGroup, ...]:
    """One group: all layers keep all tokens, and a window is the attention's affair."""
    group = CacheGroup(
        kind="paged",
        layers=tuple(range(spec.num_layers)),
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=plan.dtype,
        block_size=plan.block_size,
    )
    return (group,)


def special_ids(checkpoint: Checkpoint, vocab_size: int) -> SpecialIds:
    """Ids from generation_config.json, then config.json; those outside the vocabulary are dropped."""

    def stated(key: str) -> tuple[int, ...]:
        value = checkpoint.generation_config.get(key)
        value = checkpoint.config.get(key) if value is None else value
        values = value if isinstance(value, list) else [value]
        return tuple(index for index in values if type(index) is int and 0 <= index < vocab_size)

    def first(key: str) -> int | None:
        return next(iter(stated(key)), None)

    return SpecialIds(stated("eos_token_id"), first("bos_token_id"), first("pad_token_id"))


def _check(field: str, value: int, low: int, high: int, why: str = "") -> None:
    if not low <= value <= high:
        raise _bad(field, f"`{field}` is {value}; it must be from {low} to {high}{why}.", value, low, high)


def _bad(field: str, message: str, value: int, *bounds: int) -> InvalidArgument:
    metadata = {"field": field, "value": value, "bounds": ",".join(map(str, bounds))}
    return InvalidArgument(message, reason="OUT_OF_RANGE", metadata=metadata)
