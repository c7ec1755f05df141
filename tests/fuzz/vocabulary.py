"""What a caller of the two daemons would plausibly write into each field, and what their answers teach."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

from google.protobuf.message import Message

from service_kit import pagination

from .daemons import PREY, Home
from .messages import Words

UUIDS = [str(uuid.UUID(int=number, version=4)) for number in range(6)]
VERSION = f"engines/{PREY}/versions/1"


def _forged(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def forged_tokens() -> list[str]:
    """Page tokens that look like the server's."""
    scopes = ("", "engines", "operations", "models", f"engines/{PREY}/aliases", f"engines/{PREY}/versions False")
    keys: tuple[Any, ...] = (0, "a", True, None, -(10**30), 10**300, [1], {"a": 1}, "\ud800", "b000000000000001")
    deep = base64.urlsafe_b64encode(b"[" * 3000).decode()
    return (
        [pagination.encode("a", scope) for scope in scopes]
        + [_forged([1, s, k]) for s in scopes for k in keys]
        + [
            *(_forged(value) for value in ([], {}, [2, "", "a"], [1, "", "a", 1], "abc", None, 1e308)),
            *(deep, base64.urlsafe_b64encode(b'{"a":' * 700).decode(), base64.urlsafe_b64encode(b"9" * 3000).decode()),
            *("=", "!!!!", "AAAA", base64.b64encode(b"\xff\xfe").decode()),
        ]
    )


PAGE_TOKENS = [*[""] * 200, *forged_tokens()]
HONOURED = {
    "BuildEngineRequest": frozenset(
        {"engine_id", "source", "build_config", "targets", "verify", "labels", "alias", "force", "validate_only"}
        | {"request_id", "priority"}
    ),
    "BuildConfig": frozenset({"max_seq_len", "max_batch_size", "max_num_tokens", "tokens_per_block", "dtype"}),
    "TargetSpec": frozenset({"form"}),
    "VerifyOptions": frozenset({"off"}),
    "LoadModelRequest": frozenset(
        {"model", "engine", "version", "alias", "target", "dtype", "devices", "labels", "request_id", "validate_only"}
        | {"kv_cache", "scheduler", "limits"}
    ),
    "KvCacheConfig": frozenset({"enable_block_reuse", "max_tokens", "enable_partial_reuse"}),
    "SchedulerConfig": frozenset({"capacity_scheduler_policy", "enable_chunked_prefill", "chunk_size"}),
    "EngineLimits": frozenset({"max_seq_len", "max_batch_size"}),
    "Start": frozenset(
        {"request_id", "model", "text", "token_ids", "chat", "truncate_prompt_tokens", "sampling", "output", "kv"}
        | {"priority", "time_limit", "stream", "stream_interval", "labels"}
    ),
    "SamplingParams": frozenset(
        {"max_tokens", "min_tokens", "end_id", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "ignore_eos"}
        | {"stop_token_ids"}
    ),
    "OutputOptions": frozenset({"logprobs", "return_perf_metrics", "detokenize", "skip_special_tokens"}),
    "KvOptions": frozenset({"cache_salt"}),
    "ChatPrompt": frozenset({"messages", "add_generation_prompt", "template_kwargs", "tools"}),
    "ListOperationsRequest": frozenset({"name", "page_size", "page_token"}),
}


def builder_words(home: Home) -> Words:
    """For the builder's requests."""
    stable = f"engines/{PREY}/aliases/stable"
    names = [f"engines/{PREY}", VERSION, f"engines/{PREY}/versions/latest", f"engines/{PREY}/aliases/stable"]
    return Words(
        {
            "engine_id": [PREY, "new-engine"],
            "name": [*names, "engines/none", f"engines/{PREY}/versions/99", f"engines/{PREY}/aliases/none"],
            "GetEngineRequest.name": [names[0]],
            "SetAliasRequest.name": [stable, f"engines/{PREY}/aliases/canary"],
            "DeleteAliasRequest.name": [stable, f"engines/{PREY}/aliases/canary"],
            "GetEngineVersionRequest.name": names[1:],
            "DeleteEngineVersionRequest.name": [VERSION, f"engines/{PREY}/versions/2", f"engines/{PREY}/versions/3"],
            "VerifyEngineVersionRequest.name": [VERSION],
            "DownloadEngineVersionRequest.name": names[1:],
            "ListAliasesRequest.parent": [f"engines/{PREY}"],
            "ListOperationsRequest.name": ["", "operations"],
            "GetOperationRequest.name": ["operations/none"],
            "CancelOperationRequest.name": ["operations/none"],
            "DeleteOperationRequest.name": ["operations/none"],
            "WaitOperationRequest.name": ["operations/none"],
            "parent": [f"engines/{PREY}", "engines/-", "engines/none"],
            "path": ["tiny", "tiny", "damaged", "damaged", str(home.models), "missing", "../..", "/etc/passwd"],
            "GgufSource.path": ["tiny.gguf", "damaged.gguf", "damaged.gguf", str(home.gguf), "tiny", "missing.gguf"],
            "alias": ["stable", "canary", "", "", ""],
            "SetAliasRequest.version": [1, 2, 99],
            "etag": ["", "", "", "0", "1", "2"],
            "request_id": UUIDS,
            "page_size": [0, 1, 2, 1000],
            "page_token": PAGE_TOKENS,
            "operation": ["operations/none"],
            "after_sequence": [0, 1, 5],
            "targets": ["torch", "tensorrt"],
            "TargetSpec.form": [1],
            "VerifyOptions.off": [True],
            "validate_only": [True, True, False],
            "max_seq_len": [64, 128],
            "tokens_per_block": [16, 32],
            "priority": [0.0, 0.5, 1.0],
            "dtype": [0, 1],
            "max_batch_size": [2, 8],
            "max_num_tokens": [64, 256],
            "repo": ["owner/name"],
            "file": ["model.gguf"],
            "service": ["", "enginehouse.builder.v1.BuilderService"],
            "file_containing_symbol": ["enginehouse.builder.v1.BuilderService"],
        },
        HONOURED,
    )


def inference_words() -> Words:
    """For the inference server's requests. Only the prey is named, as it may be unloaded."""
    return Words(
        {
            "model": [PREY, PREY, PREY, f"{PREY}@1", ""],
            "LoadModelRequest.model": ["extra", "extra-2", "extra-3", PREY, ""],
            "UnloadModelRequest.model": ["extra", "extra-2", "extra-3", PREY],
            "GetModelRequest.name": [PREY, "none"],
            "engine": [PREY],
            "LoadModelRequest.version": [1, 1, 1, 2, 99],
            "LoadModelRequest.alias": ["stable", "stable", "none"],
            "ListOperationsRequest.name": ["", "operations"],
            "name": ["operations/none"],
            "request_id": ["a", "b", "c"],
            "LoadModelRequest.request_id": UUIDS,
            "server_ids": ["none"],
            "text": ["the quick brown fox", "hello"],
            "ChatMessage.name": ["ann"],
            "texts": ["the quick brown fox", "été"],
            "TokenIds.ids": [3, 4, 5, 6, 7, 100],
            "role": ["user", "assistant", "system"],
            "content": ["hello"],
            "max_tokens": [1, 4, 20],
            "SamplingParams.temperature": [0.0, 0.7],
            "SamplingParams.top_k": [1, 5],
            "SamplingParams.top_p": [0.9],
            "seed": [1, 2],
            "min_p": [0.0, 0.1],
            "min_tokens": [0, 1],
            "ids": [3, 4, 5, 6, 7, 100],
            "end_id": [-1, 2],
            "stop_token_ids": [2, 5],
            "dtype": [0, 1],
            "max_seq_len": [16, 64],
            "max_batch_size": [2, 8],
            "truncate_prompt_tokens": [2, 8],
            "stop": ["a", "fox"],
            "logprobs": [0, 1, 3],
            "stream": [True, False],
            "stream_interval": [1, 2],
            "cache_salt": ["salt"],
            "target": ["torch"],
            "devices": ["cpu"],
            "KvCacheConfig.max_tokens": [256, 1024],
            "chunk_size": [16],
            "num_threads": [1],
            "validate_only": [True, False],
            "page_size": [0, 1, 2],
            "page_token": PAGE_TOKENS,
            "after_sequence": [0, 1],
            "grace": [],
            "service": ["", "enginehouse.inference.v1.InferenceService"],
            "file_containing_symbol": ["enginehouse.inference.v1.InferenceService"],
        },
        HONOURED,
    )


OPERATION_REQUESTS = tuple(f"{verb}OperationRequest.name" for verb in ("Get", "Cancel", "Delete", "Wait"))


def learn(words: Words, message: Message) -> None:
    """Remembers what the answer gives a caller to ask with next: operations, pages, etags, live requests."""
    kind = message.DESCRIPTOR.name
    if kind == "Operation" and message.name:
        for field in ("operation", *OPERATION_REQUESTS):
            words.learn(field, message.name)
    if kind == "Accepted":
        words.learn("server_ids", message.server_id)
    if kind == "Alias":
        words.learn("etag", message.etag)
    for field, value in message.ListFields():
        if field.name == "next_page_token":
            words.learn("page_token", value)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value[:3] if field.is_repeated else (value,):
                learn(words, part)
