"""Prompts and side arguments: what is taken, what is refused, and how it travels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from enginehouse import DisaggregatedParams, KvCacheRetentionConfig, LoRARequest, TokenRangeRetentionConfig
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, sampling_pb2
from enginehouse.errors import InvalidArgument
from enginehouse.inputs import fill, is_single, parse_prompt
from enginehouse.names import EngineRef, checkpoint_source, engine_id_for, parse_engine


def start_for(prompt: Any) -> inference_pb2.Start:
    start = inference_pb2.Start()
    fill(start, parse_prompt(prompt))
    return start


@pytest.mark.parametrize(
    ("inputs", "single"),
    [("text", True), ([1, 2], True), ({"prompt": "a"}, True), ([], False), (["a"], False), ([[1]], False)],
)
def test_what_counts_as_one_prompt(inputs: Any, single: bool) -> None:
    assert is_single(inputs) is single


def test_each_kind_of_prompt() -> None:
    assert start_for("a").text == "a"
    assert list(start_for([1, 2]).token_ids.ids) == [1, 2]
    assert list(start_for(np.array([3, 4]).tolist()).token_ids.ids) == [3, 4]
    both = start_for({"prompt": "shown", "prompt_token_ids": np.array([1]), "query_token_ids": [5]})
    assert (both.WhichOneof("prompt"), list(both.query_token_ids)) == ("token_ids", [5])
    embedded = start_for({"prompt_embeddings": np.zeros((2, 3))}).embeddings
    assert (list(embedded.shape), len(embedded.data)) == ([2, 3], 24)
    items = start_for({"prompt": "a", "multi_modal_data": {"image": ["http://x", b"png"]}}).multimodal
    assert [item.WhichOneof("source") for item in items] == ["uri", "data"]
    chat = start_for({"messages": [{"role": "tool", "content": "c", "tool_call_id": "i"}], "tools": [{"a": 1}]}).chat
    assert (chat.messages[0].tool_call_id, dict(chat.tools[0])) == ("i", {"a": 1})


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({}, "exactly one of"),
        ({"prompt": None}, "exactly one of"),
        ({"prompt": "a", "messages": []}, "exactly one of"),
        ({"promt": "a"}, "no key 'promt'"),
        ({"prompt": 3}, "prompt must be a str"),
        ({"prompt": "a", "tools": []}, "tools need messages"),
        ({"messages": []}, "messages must be a list"),
        ({"messages": [{"role": "user", "content": 3}]}, "must be str"),
        ({"messages": [{"role": "user", "text": "a"}]}, "no key 'text'"),
        ({"prompt_token_ids": []}, "at least one token"),
        ({"prompt_token_ids": "abc"}, "list of ints"),
        ([1, -2], r"prompt_token_ids\[1\] must be at least 0"),
        ([1, 2.5], r"prompt_token_ids\[1\] must be an int"),
        ({"prompt": "a", "multi_modal_data": {"smell": b""}}, "no key 'smell'"),
        ({"prompt_embeddings": [1.0]}, "hidden size"),
    ],
)
def test_what_is_wrong_is_named(prompt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        start_for(prompt)


def test_side_arguments_travel() -> None:
    assert LoRARequest("l", 3, "/p").to_proto() == sampling_pb2.LoraRequest(
        name="l", int_id=3, path="/p", ckpt_source="hf"
    )
    ranges = [TokenRangeRetentionConfig(0, 4, 80, 1000), TokenRangeRetentionConfig(4)]
    retention = KvCacheRetentionConfig(ranges, 20, 500).to_proto()
    assert retention.token_range_retention_configs[0].duration.seconds == 1
    assert not retention.token_range_retention_configs[1].HasField("token_end")
    params = DisaggregatedParams(request_type="CONTEXT_ONLY", opaque_state=b"s", first_gen_tokens=[1])
    proto = params.to_proto()
    assert proto.request_type == sampling_pb2.REQUEST_TYPE_CONTEXT_ONLY
    assert DisaggregatedParams.from_proto(proto) == params


def test_wrong_side_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="overlap at token 3"):
        KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 4), TokenRangeRetentionConfig(3, 5)])
    with pytest.raises(ValueError, match="priority must be at least 0 and at most 100"):
        TokenRangeRetentionConfig(0, 4, 101)
    with pytest.raises(ValueError, match="request_type must be one of"):
        DisaggregatedParams(request_type="both")
    with pytest.raises(ValueError, match="lora_int_id"):
        LoRARequest("l", 0)


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("smollm2", EngineRef("smollm2")),
        ("smollm2@3", EngineRef("smollm2", 3)),
        ("smollm2@prod", EngineRef("smollm2", None, "prod")),
        ("smollm2@latest", EngineRef("smollm2")),
        ("engines/smollm2/versions/7", EngineRef("smollm2", 7)),
        ("engines/smollm2/aliases/prod", EngineRef("smollm2", None, "prod")),
    ],
)
def test_engine_names(text: str, ref: EngineRef) -> None:
    assert parse_engine(text) == ref


@pytest.mark.parametrize("text", ["", "SmolLM2", "a@", "../a", "a/b", "-a", "engines/a/b/c"])
def test_bad_engine_names(text: str) -> None:
    with pytest.raises(ValueError, match="is not an engine"):
        parse_engine(text)


@pytest.mark.parametrize(
    ("source", "engine"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m-instruct"),
        ("/models/Q4_K.gguf", "q4-k"),
        ("org/repo:sub/File.gguf", "file"),
        ("/models/7B/", "m-7b"),
        ("/models/" + "x" * 90, "x" * 63),
    ],
)
def test_an_engine_id_from_a_checkpoint(source: str, engine: str) -> None:
    assert engine_id_for(source) == engine
    assert parse_engine(engine).engine == engine


def test_checkpoint_sources(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert checkpoint_source("org/model", "main").hub.repo == "org/model"
    assert checkpoint_source("here").path == str(tmp_path / "here")
    assert checkpoint_source("./not-here").path == str(tmp_path / "not-here")
    assert checkpoint_source("a.gguf").gguf.path == str(tmp_path / "a.gguf")
    hub_file = checkpoint_source("org/repo:sub/a.gguf", "v1").gguf.hub_file
    assert (hub_file.repo, hub_file.file, hub_file.revision) == ("org/repo", "sub/a.gguf", "v1")
    with pytest.raises(ValueError, match="neither a path here nor a hub id"):
        checkpoint_source("what is this?")
    for path in ("here", "./x", "a.gguf", tmp_path / "here"):
        with pytest.raises(InvalidArgument, match="has no `revision`"):
            checkpoint_source(path, "main")
