"""graph.json: round trip, and what `validate` and `decode` refuse."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from engine_ops import graph as graph_module
from engine_ops.graph import Graph, Node, Tensor, decode, encode, validate
from engine_ops.schema import PATH, graph_schema, render
from enginehouse.errors import FailedPrecondition, InvalidArgument

HIDDEN = 8


def small_graph() -> Graph:
    """embedding, a norm, a biased linear layer."""
    return Graph(
        format="enginehouse.graph",
        opset=1,
        name="small",
        inputs={"token_ids": Tensor("int32", ("T",))},
        pools={},
        weights={
            "embed": Tensor("float32", (10, HIDDEN)),
            "norm": Tensor("float32", (HIDDEN,)),
            "w": Tensor("float32", (4, HIDDEN)),
            "b": Tensor("float32", (4,)),
        },
        nodes=(
            Node("embedding", "embed", {"token_ids": "token_ids", "weight": "embed"}, ("x",)),
            Node("rms_norm", "norm", {"x": "x", "weight": "norm"}, ("n",), {"eps": 1e-5}),
            Node("linear", "head", {"x": "n", "weight": "w", "bias": "b"}, ("y",), {"out_dtype": "float32"}),
        ),
        values={
            "x": Tensor("float32", ("T", HIDDEN)),
            "n": Tensor("float32", ("T", HIDDEN)),
            "y": Tensor("float32", ("T", 4)),
        },
        outputs={"logits": "y"},
    )


def with_node(index: int, **changes: Any) -> Graph:
    graph = small_graph()
    nodes = list(graph.nodes)
    nodes[index] = msgspec.structs.replace(nodes[index], **changes)
    return msgspec.structs.replace(graph, nodes=tuple(nodes))


def test_encode_and_decode_give_the_same_graph_and_bytes() -> None:
    graph = small_graph()
    assert decode(encode(graph)) == graph
    assert encode(decode(encode(graph))) == encode(graph)


@pytest.mark.parametrize(
    ("graph", "node", "words"),
    [
        (with_node(1, op="group_norm"), "norm", "operator `group_norm` is not in opset"),
        (with_node(1, inputs={"x": "x"}), "norm", "lacks input `weight`"),
        (with_node(1, inputs={"x": "x", "weight": "norm", "bias": "b"}), "norm", "has no input `bias`"),
        (with_node(1, inputs={"x": "later", "weight": "norm"}), "norm", "undefined value `later`"),
        (with_node(0, inputs={"token_ids": "y", "weight": "embed"}), "embed", "undefined value `y`"),
        (with_node(1, attrs={}), "norm", "missing required field `eps`"),
        (with_node(1, attrs={"eps": "small"}), "norm", "eps"),
        (with_node(1, attrs={"eps": 1e-5, "axis": 1}), "norm", "unknown field `axis`"),
        (with_node(1, inputs={"x": "x", "weight": "b"}), "norm", "has extent 4 on axis 0, expected 8"),
        (with_node(2, inputs={"x": "n", "weight": "b"}), "head", "has 1 dimensions, expected 2"),
        (with_node(0, inputs={"token_ids": "embed", "weight": "embed"}), "embed", "has dtype float32, expected int32"),
        (with_node(1, outputs=("x",)), "norm", "value `x` is defined twice"),
        (with_node(1, outputs=("n", "extra")), "norm", "has 1 outputs, not 2"),
        (with_node(2, outputs=("z",)), "head", "value `z` is declared as None"),
        (with_node(2, attrs={"out_dtype": "float64"}), "head", "out_dtype"),
    ],
)
def test_a_wrong_node_is_refused_by_name(graph: Graph, node: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate(graph)
    assert caught.value.reason == "INVALID_GRAPH"
    assert caught.value.metadata["node"] == node
    assert words in caught.value.message


def test_an_undefined_output_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="undefined value `gone`"):
        validate(msgspec.structs.replace(small_graph(), outputs={"logits": "gone"}))


def test_a_value_without_a_node_is_refused() -> None:
    graph = small_graph()
    values = {**graph.values, "orphan": Tensor("float32", (1,))}
    with pytest.raises(InvalidArgument, match="`orphan` has a type and no node"):
        validate(msgspec.structs.replace(graph, values=values))


def test_a_declared_type_that_differs_from_the_inferred_one_is_refused() -> None:
    graph = small_graph()
    values = {**graph.values, "y": Tensor("bfloat16", ("T", 4))}
    with pytest.raises(InvalidArgument, match="value `y` is declared as"):
        validate(msgspec.structs.replace(graph, values=values))


def test_heads_that_do_not_divide_are_refused() -> None:
    attrs = {"num_heads": 6, "num_kv_heads": 4, "head_dim": 8, "scale": 1.0, "window": None}
    with pytest.raises(InvalidArgument, match="not a multiple of num_kv_heads 4"):
        Node("paged_attention", "attn", {}, (), attrs).typed_attrs()


def test_an_update_of_what_is_no_pool_is_refused() -> None:
    graph = small_graph()
    given = ("qkv", "positions", "query_start", "block_tables", "k_pool", "v_pool")
    rope = {"kind": "default", "theta": 1e4, "dim": 4, "original_max_position": 8}
    attrs = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 4, "rope": rope}
    node = Node("qkv_rope_kv", "attn", dict.fromkeys(given, "x"), ("q",), attrs)
    with pytest.raises(InvalidArgument, match="`x` is not a pool"):
        validate(msgspec.structs.replace(graph, nodes=(*graph.nodes, node)))


def test_another_opset_is_refused_naming_both_sides() -> None:
    with pytest.raises(FailedPrecondition) as caught:
        decode(encode(msgspec.structs.replace(small_graph(), opset=2)))
    assert caught.value.reason == "UNSUPPORTED_OPSET"
    assert caught.value.metadata == {"opset": "2", "supported": "1"}


@pytest.mark.parametrize("data", [b"", b"{}", b"[1", b'{"format":"onnx"}', b"\xff\xfe", b'{"nodes":' + b"[" * 10**6])
def test_bytes_that_are_no_graph_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode(data)
    assert caught.value.reason == "INVALID_GRAPH"


def test_an_unknown_field_is_refused() -> None:
    data = json.loads(encode(small_graph()))
    with pytest.raises(InvalidArgument, match="extra"):
        decode(json.dumps({**data, "extra": 1}).encode())


def test_a_graph_over_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module, "MAX_BYTES", 10)
    with pytest.raises(InvalidArgument, match="larger than 10"):
        decode(encode(small_graph()))


def test_the_schema_file_is_fresh() -> None:
    assert PATH.read_text(encoding="utf-8") == render(), "run python -m engine_ops.schema"


def test_the_schema_accepts_a_graph_and_refuses_wrong_attributes() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    data = json.loads(encode(small_graph()))
    jsonschema.validate(data, graph_schema())
    data["nodes"][1]["attrs"] = {"epsilon": 1e-5}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, graph_schema())
