"""Served models as the messages of ModelService."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse._gen.enginehouse.inference.v1 import model_pb2 as mpb
from inference_service.frontend.clock import wall_timestamp
from inference_service.frontend.served_model import Engine, ServedModel, State

_STATES: dict[State, mpb.Model.State] = {
    State.LOADING: mpb.Model.STATE_LOADING,
    State.READY: mpb.Model.STATE_READY,
    State.UNLOADING: mpb.Model.STATE_UNLOADING,
    State.FAILED: mpb.Model.STATE_FAILED,
    State.GONE: mpb.Model.STATE_UNLOADING,
}
_DTYPES: dict[str, common_pb2.DataType] = {
    "float32": common_pb2.DATA_TYPE_FLOAT32,
    "bfloat16": common_pb2.DATA_TYPE_BFLOAT16,
    "float16": common_pb2.DATA_TYPE_FLOAT16,
}
_KINDS: dict[str, common_pb2.CacheKind] = {
    "paged": common_pb2.CACHE_KIND_PAGED,
    "window": common_pb2.CACHE_KIND_WINDOW,
    "latent": common_pb2.CACHE_KIND_LATENT,
    "state": common_pb2.CACHE_KIND_STATE,
}
_POLICIES: dict[str, mpb.CapacitySchedulerPolicy] = {
    "GUARANTEED_NO_EVICT": mpb.CAPACITY_SCHEDULER_POLICY_GUARANTEED_NO_EVICT,
    "MAX_UTILIZATION": mpb.CAPACITY_SCHEDULER_POLICY_MAX_UTILIZATION,
    "STATIC_BATCH": mpb.CAPACITY_SCHEDULER_POLICY_STATIC_BATCH,
}


def model_message(model: ServedModel) -> mpb.Model:
    """The model as it is now."""
    manifest, tokenizer = model.manifest, model.engine.spec.tokenizer if model.engine else None
    message = mpb.Model(
        name=model.name,
        engine_version=model.version,
        state=_STATES[model.state],
        state_message=model.message,
        limits=_limits(model),
        cache_groups=_cache_groups(model),
        features=manifest.features,
        create_time=wall_timestamp(model.create_time),
        update_time=wall_timestamp(model.update_time),
        alias=model.alias,
        labels=dict(model.load.labels),
        vocab_size=manifest.vocab_size,
        architecture=manifest.architecture,
        has_tokenizer=tokenizer is not None,
        has_chat_template=tokenizer is not None and tokenizer.has_chat_template,
        eos_token_ids=manifest.eos_token_ids,
        scheduler=_scheduler(model),
    )
    if manifest.bos_token_id is not None:
        message.bos_token_id = manifest.bos_token_id
    if model.engine is not None:
        message.load_facts.CopyFrom(_facts(model, model.engine))
    return message


def _limits(model: ServedModel) -> common_pb2.EngineLimits:
    scheduler = model.load.config.scheduler
    longest = model.engine.spec.max_seq_len if model.engine else model.load.config.max_seq_len
    return common_pb2.EngineLimits(
        max_batch_size=scheduler.max_batch_size,
        max_num_tokens=scheduler.max_num_tokens,
        max_input_len=model.engine.spec.max_prompt_tokens if model.engine else model.load.max_input_len,
        max_seq_len=longest,
        max_beam_width=1,
    )


def _scheduler(model: ServedModel) -> mpb.SchedulerConfig:
    scheduler = model.load.config.scheduler
    return mpb.SchedulerConfig(
        capacity_scheduler_policy=_POLICIES[scheduler.policy],
        context_chunking_policy=mpb.CONTEXT_CHUNKING_POLICY_FIRST_COME_FIRST_SERVED,
        waiting_queue_policy=mpb.WAITING_QUEUE_POLICY_PRIORITY
        if model.load.use_priority
        else mpb.WAITING_QUEUE_POLICY_FCFS,
        enable_chunked_prefill=scheduler.enable_chunked_prefill,
        chunk_size=scheduler.chunk_size,
    )


def _cache_groups(model: ServedModel) -> list[common_pb2.CacheGroup]:
    sizes = model.engine.runner.num_blocks if model.engine else (0,) * len(model.manifest.cache_groups)
    return [
        common_pb2.CacheGroup(
            kind=_KINDS[group.kind],
            layers=group.layers,
            token_shape=(2, group.num_kv_heads, group.head_dim),
            dtype=_DTYPES.get(group.dtype, common_pb2.DATA_TYPE_UNSPECIFIED),
            block_size=group.block_size,
            window=group.window or 0,
            layout="block,kv_head,slot,dim",
            num_blocks=blocks,
        )
        for group, blocks in zip(model.manifest.cache_groups, sizes, strict=True)
    ]


def _facts(model: ServedModel, engine: Engine) -> mpb.LoadFacts:
    duration = Duration()
    duration.FromNanoseconds(int(engine.load_seconds * 1e9))
    group = model.manifest.cache_groups[0]
    runner = engine.runner.facts
    return mpb.LoadFacts(
        target="torch",
        devices=[runner.device],
        dtype=_DTYPES.get(runner.dtype, common_pb2.DATA_TYPE_UNSPECIFIED),
        weights_bytes=runner.weights_bytes,
        kv_cache_bytes=runner.kv_cache_bytes,
        kv_cache_tokens=(engine.runner.num_blocks[0] - 1) * group.block_size,
        load_duration=duration,
        world_size=1,
    )
