"""What is not built yet is refused by name before a weight is read: parallel engines, quantised ones, odd heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder_service.api.requests import Site, read_build
from builder_service.models import read_spec, weight_parts
from enginehouse._gen.enginehouse.builder.v1 import build_config_pb2 as config_pb
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse.errors import EnginehouseError, Unimplemented

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 11008,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "max_position_embeddings": 64,
}
QUANTISED = [
    value
    for name, value in config_pb.QuantAlgo.items()
    if name not in ("QUANT_ALGO_UNSPECIFIED", "QUANT_ALGO_NO_QUANT")
]


def refusal(root: Path, **fields: Any) -> EnginehouseError:
    (root / "model").mkdir()
    request = pb.BuildEngineRequest(engine_id="tiny", source=pb.CheckpointSource(path="model"), **fields)
    with pytest.raises(Unimplemented) as error:
        read_build(request, Site(store=root / "store", cache=root / "cache", roots=(root,)))
    assert error.value.reason == "UNSUPPORTED_FIELD"
    return error.value


@pytest.mark.parametrize(
    "sizes",
    [
        {"tensor_parallel_size": 4},
        {"pipeline_parallel_size": 2},
        {"context_parallel_size": 2},
        {"moe_expert_parallel_size": 2},
        {"enable_attention_dp": True},
        {"auto_parallel": True},
    ],
    ids=str,
)
def test_a_parallel_engine_is_refused_by_name(tmp_path: Path, sizes: dict[str, Any]) -> None:
    error = refusal(tmp_path, parallel_config=common_pb2.ParallelConfig(**sizes))
    assert error.metadata["field"].startswith("parallel_config")
    assert "parallel_config" in error.message


@pytest.mark.parametrize("algorithm", QUANTISED, ids=config_pb.QuantAlgo.Name)
def test_a_quantised_engine_is_refused_by_name(tmp_path: Path, algorithm: int) -> None:
    error = refusal(tmp_path, quant_config=config_pb.QuantConfig(quant_algo=algorithm, group_size=128))
    assert error.metadata["field"].startswith("quant_config")


@pytest.mark.parametrize("desc_act", [False, True])
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_checkpoint_in_int4_groups_is_refused_by_name(method: str, desc_act: bool) -> None:
    quantised = {"quant_method": method, "bits": 4, "group_size": 128, "desc_act": desc_act}
    with pytest.raises(Unimplemented) as error:
        read_spec({**CONFIG, "quantization_config": quantised})
    assert error.value.metadata["field"] == "quantization_config"


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_heads_that_share_keys_evenly_are_built_with_their_biases(kv_heads: int) -> None:
    parts = weight_parts(read_spec({**CONFIG, "num_key_value_heads": kv_heads}))
    width = (8 + 2 * kv_heads) * 8
    assert parts["layers.0.attn.qkv.weight"].shape == (width, 64)
    assert parts["layers.0.attn.qkv.bias"].shape == (width,)


@pytest.mark.parametrize("kv_heads", [3, 5, 16])
def test_heads_that_do_not_are_refused_with_the_numbers(kv_heads: int) -> None:
    with pytest.raises(Unimplemented) as error:
        read_spec({**CONFIG, "num_key_value_heads": kv_heads})
    assert error.value.metadata["field"] == "num_key_value_heads"
    assert str(kv_heads) in error.value.message
    assert "8" in error.value.message
