"""capture: what the graph of a spec looks like."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest
import torch

from builder_service.build.capture import INPUTS, capture
from builder_service.models import DecoderSpec, read_spec, weight_parts
from builder_service.models.decoder import Decoder
from engine_ops.graph import decode, encode
from enginehouse.errors import InvalidArgument

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "attention_bias": True,
}
SMALL_135M = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def spec() -> DecoderSpec:
    return read_spec(CONFIG)


def test_the_same_spec_gives_the_same_bytes(spec: DecoderSpec) -> None:
    first = encode(capture(spec, "bfloat16", 32))
    assert encode(capture(spec, "bfloat16", 32)) == first
    assert encode(decode(first)) == first


def test_the_decoder_has_the_canonical_weights(spec: DecoderSpec) -> None:
    with torch.device("meta"):
        state = Decoder(spec).state_dict()
    assert {name: tuple(t.shape) for name, t in state.items()} == {n: p.shape for n, p in weight_parts(spec).items()}


def test_inputs_pools_and_weights_are_the_contract(spec: DecoderSpec) -> None:
    graph = capture(spec, "bfloat16", 8)
    assert graph.inputs == INPUTS
    assert list(graph.pools) == ["k_pool.0", "v_pool.0", "k_pool.1", "v_pool.1"]
    assert {pool.tensor.shape for pool in graph.pools.values()} == {("N", 2, 8, 16)}
    assert {name: tensor.shape for name, tensor in graph.weights.items()} == {
        name: part.shape for name, part in weight_parts(spec).items()
    }
    used = {value for node in graph.nodes for value in node.inputs.values()}
    assert set(graph.inputs) | set(graph.pools) | set(graph.weights) <= used
    logits = graph.values[graph.outputs["logits"]]
    assert (logits.dtype, logits.shape) == ("float32", ("R", spec.vocab_size))


def test_values_keep_their_symbols(spec: DecoderSpec) -> None:
    shapes = {tensor.shape[0] for tensor in capture(spec, "float32", 8).values.values()}
    assert shapes == {"T", "R"}


def test_a_layer_is_nine_operators(spec: DecoderSpec) -> None:
    ops = [node.op for node in capture(spec, "float32", 8).nodes if node.name.startswith("layers.1.")]
    attention = ["add_rms_norm", "linear", "qkv_rope_kv", "paged_attention", "linear"]
    assert ops == [*attention, "add_rms_norm", "linear", "silu_and_mul", "linear"]


def test_an_unknown_dtype_is_refused(spec: DecoderSpec) -> None:
    with pytest.raises(InvalidArgument, match="float64"):
        capture(spec, "float64", 8)


def test_thirty_layers_are_captured_in_15_seconds_without_memory_for_weights() -> None:
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    graph = capture(read_spec(SMALL_135M), "bfloat16", 32)
    assert time.monotonic() - begin < 15
    assert len(graph.nodes) == 1 + 30 * 9 + 3
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 200e6, "the weights would take 269 MB"
