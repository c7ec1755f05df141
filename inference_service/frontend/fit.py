"""Whether this server can run an engine, and within which bounds: from its manifest and its graph, before a weight is
read."""

from __future__ import annotations

import dataclasses
import os

from engine_ops.graph import SUPPORTED_OPSETS, Graph
from engine_store.manifest import Manifest
from enginehouse.errors import DataLoss, FailedPrecondition, InvalidArgument
from inference_service.config import ModelConfig
from inference_service.frontend.checks import check_int
from inference_service.frontend.prompts import ModelSpec
from inference_service.frontend.served_model import LoadSpec
from inference_service.text.tokenizer import Tokenizer

_SUPPORTED_FORM = "torch"


def check_manifest(manifest: Manifest) -> None:
    """Refuses an engine that this server cannot run, before any of its files is read."""
    forms = [target.form for target in manifest.targets]
    if manifest.opset not in SUPPORTED_OPSETS:
        raise _unfit("needs opset", manifest.opset, "runs", ", ".join(map(str, SUPPORTED_OPSETS)), "UNSUPPORTED_OPSET")
    if _SUPPORTED_FORM not in forms:
        raise _unfit("has the targets", ", ".join(forms) or "none", "runs", _SUPPORTED_FORM, "UNSUPPORTED_TARGET")
    if manifest.mapping.world_size != 1:
        raise _unfit("needs ranks:", manifest.mapping.world_size, "runs", "1", "UNSUPPORTED_WORLD_SIZE")
    kinds = {group.kind for group in manifest.cache_groups}
    if not manifest.cache_groups or kinds - {"paged", "window"}:
        raise _unfit("has the caches", ", ".join(sorted(kinds)) or "none", "runs", "paged, window", "UNSUPPORTED_CACHE")


def check_graph(graph: Graph, manifest: Manifest) -> None:
    """Refuses a manifest that says something else than the graph. Requests are held to the manifest, and the graph
    reads memory by what they bring; the digests are in the manifest, which has none of its own.

    Raises:
        DataLoss: reason MANIFEST_MISMATCH, metadata `field`.
    """
    if "logits" not in graph.outputs:
        raise _mismatch(manifest, "vocab_size")
    logits = graph.values[graph.outputs["logits"]].shape[-1]
    if manifest.vocab_size != logits or any(token_id >= manifest.vocab_size for token_id in manifest.eos_token_ids):
        raise _mismatch(manifest, "vocab_size")
    stated = {
        (number, layer, group.num_kv_heads, group.block_size, group.head_dim, group.dtype)
        for number, group in enumerate(manifest.cache_groups)
        for layer in group.layers
    }
    pools = graph.pools.values()
    if stated != {(pool.group, pool.layer, *pool.tensor.shape[1:], pool.tensor.dtype) for pool in pools}:
        raise _mismatch(manifest, "cache_groups")


def fit_config(config: ModelConfig, manifest: Manifest) -> ModelConfig:
    """`config` with its batch held to the engine's limits; a sequence limit above the engine's and more threads than
    this process has cores are refused."""
    limits, scheduler = manifest.limits, config.scheduler
    if config.runner.num_threads is not None:
        check_int("executor.num_threads", config.runner.num_threads, 1, len(os.sched_getaffinity(0)))
    if config.max_seq_len is not None and not 2 <= config.max_seq_len <= limits.max_seq_len:
        raise InvalidArgument(
            f"`limits.max_seq_len` is {config.max_seq_len}; the engine takes 2 to {limits.max_seq_len}.",
            reason="LIMIT_ABOVE_ENGINE",
            metadata={"field": "limits.max_seq_len", "value": config.max_seq_len, "engine": limits.max_seq_len},
        )
    return dataclasses.replace(
        config,
        max_seq_len=config.max_seq_len or limits.max_seq_len,
        scheduler=dataclasses.replace(
            scheduler,
            max_batch_size=min(scheduler.max_batch_size, limits.max_batch_size),
            max_num_tokens=min(scheduler.max_num_tokens, limits.max_num_tokens),
        ),
    )


def model_spec(spec: LoadSpec, manifest: Manifest, tokenizer: Tokenizer | None, longest: int) -> ModelSpec:
    """What requests are held to. `longest`: most tokens of one sequence, with the KV cache counted in."""
    scheduler = spec.config.scheduler
    bounds = [longest, *([spec.max_input_len] if spec.max_input_len is not None else [])]
    if not scheduler.enable_chunked_prefill:
        bounds.append(scheduler.max_num_tokens)
    return ModelSpec(
        vocab_size=manifest.vocab_size,
        max_seq_len=longest,
        max_prompt_tokens=min(bounds),
        eos_token_ids=manifest.eos_token_ids,
        use_priority=spec.use_priority,
        tokenizer=tokenizer,
    )


def _mismatch(manifest: Manifest, field: str) -> DataLoss:
    return DataLoss(
        f"`{field}` in the manifest of `{manifest.name}` version {manifest.version} is not what its graph has; delete "
        "the version and build it again.",
        reason="MANIFEST_MISMATCH",
        metadata={"engine": manifest.name, "version": manifest.version, "field": field},
    )


def _unfit(has: str, engine: object, runs: str, server: str, reason: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"The engine {has} {engine}; this server {runs} {server}. Build the engine again for this server.",
        reason=reason,
        metadata={"engine": engine, "server": server},
    )
