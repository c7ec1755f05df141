"""The JSON schema of graph.json: `python -m engine_ops.schema` rewrites `graph.schema.json` beside this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from engine_ops.graph import OPSET, Graph
from engine_ops.opset import OPS

PATH = Path(__file__).with_name("graph.schema.json")


def graph_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a graph; each operator's inputs, outputs and attributes included."""
    (graph,), components = msgspec.json.schema_components([Graph], ref_template="#/$defs/{name}")
    operators = {operator.attrs for operator in OPS.values()}
    records = sorted(operators, key=lambda record: record.__name__)
    _, attributes = msgspec.json.schema_components(records, ref_template="#/$defs/{name}")
    components["Node"]["allOf"] = [_rule(op) for op in OPS]
    components["Node"]["properties"]["op"] = {"enum": list(OPS)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://enginehouse.dev/graph/opset-{OPSET}.schema.json",
        **graph,
        "$defs": components | attributes,
    }


def _rule(op: str) -> dict[str, Any]:
    operator = OPS[op]
    inputs = {
        "properties": {param.name: {"type": "string"} for param in operator.inputs},
        "required": [param.name for param in operator.inputs if not param.optional],
        "additionalProperties": False,
    }
    count = len(operator.outputs)
    then = {
        "inputs": inputs,
        "outputs": {"minItems": count, "maxItems": count},
        "attrs": {"$ref": f"#/$defs/{operator.attrs.__name__}"},
    }
    return {"if": {"properties": {"op": {"const": op}}}, "then": {"properties": then}}


def render() -> str:
    """The file's text."""
    return json.dumps(graph_schema(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
