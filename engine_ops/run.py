"""The interpreter: runs a graph over the operators' definitions, or over a table of other implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, no_grad

from engine_ops.graph import Graph, Node
from engine_ops.opset import OPS
from engine_ops.reference import REFERENCES, Outputs


@no_grad()
def run_graph(
    graph: Graph,
    weights: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    pools: Mapping[str, Tensor],
    operators: Mapping[str, Callable[..., Outputs]] = REFERENCES,
) -> dict[str, Tensor]:
    """Runs one step. `graph` is valid (`engine_ops.graph.validate`).

    Args:
        weights, inputs, pools: by the names in the graph, with the types that it states. `pools` are updated in place.

        operators: `f(attrs, *tensors) -> outputs` for each operator.

    Returns:
        The graph's outputs by name.
    """
    env: dict[str, Tensor] = {**inputs, **pools, **{name: weights[name] for name in graph.weights}}
    last_use = _last_use(graph)
    for index, node in enumerate(graph.nodes):
        arguments = [env[node.inputs[p.name]] if p.name in node.inputs else None for p in OPS[node.op].inputs]
        env.update(zip(node.outputs, operators[node.op](node.typed_attrs(), *arguments), strict=True))
        for value in _values(node):
            if last_use[value] == index and value in graph.values:
                del env[value]
    return {name: env[value] for name, value in graph.outputs.items()}


def _values(node: Node) -> set[str]:
    return {*node.inputs.values(), *node.outputs}


def _last_use(graph: Graph) -> dict[str, int]:
    """Index of the last node that touches each value; graph outputs live to the end."""
    last = {value: index for index, node in enumerate(graph.nodes) for value in _values(node)}
    return {**last, **{value: len(graph.nodes) for value in graph.outputs.values()}}
