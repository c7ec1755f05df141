"""A graph made ready to run: typed attributes, and every value replaced by where it is found.

Activations live in numbered slots that are reused once their last reader has run, so a step holds a few of them
rather than one for every node.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from engine_ops.graph import Graph, Node
from engine_ops.opset import Attrs

Place = Literal["slot", "weight", "pool", "input"]


class Source(NamedTuple):
    """Where an operator's input is found. `slot` is meant where `place` is "slot", else `name`."""

    place: Place
    name: str
    slot: int = -1


class Instruction(NamedTuple):
    """One node. `inputs` has the operator's parameters by name; `outputs` are slots."""

    node: Node
    attrs: Attrs
    inputs: dict[str, Source]
    outputs: tuple[int, ...]

    def slot(self, parameter: str) -> int:
        source = self.inputs[parameter]
        assert source.place == "slot", f"{self.node.name}.{parameter} is a {source.place}, not an activation"
        return source.slot

    def name(self, parameter: str) -> str | None:
        """Name of the weight, pool or graph input behind a parameter; None where it is not given."""
        source = self.inputs.get(parameter)
        return source.name if source else None


class Plan(NamedTuple):
    """`widths[i]`: the most columns that a value in slot i has; `logits`: the slot of the graph's output."""

    instructions: tuple[Instruction, ...]
    widths: tuple[int, ...]
    logits: int


def make_plan(graph: Graph) -> Plan:
    """Assigns slots by a linear scan over the nodes, which are in execution order."""
    output = graph.outputs["logits"]
    last_use = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs.values()}
    slots: dict[str, int] = {}
    widths: list[int] = []
    free: list[int] = []
    instructions = []
    for i, node in enumerate(graph.nodes):
        inputs = {parameter: _source(graph, slots, value) for parameter, value in node.inputs.items()}
        for value in node.outputs:
            slots[value] = free.pop() if free else len(widths)
            if slots[value] == len(widths):
                widths.append(0)
            widths[slots[value]] = max(widths[slots[value]], columns(graph, value))
        outputs = tuple(slots[value] for value in node.outputs)
        instructions.append(Instruction(node, node.typed_attrs(), inputs, outputs))
        # Released only after the outputs have theirs: an operator never writes where it reads.
        used = {*node.inputs.values(), *node.outputs}
        free += [slots[v] for v in used if v in slots and last_use.get(v, i) <= i and v != output]
    return Plan(tuple(instructions), tuple(widths), slots[output])


def _source(graph: Graph, slots: dict[str, int], value: str) -> Source:
    if value in slots:
        return Source("slot", value, slots[value])
    if value in graph.weights:
        return Source("weight", value)
    return Source("pool" if value in graph.pools else "input", value)


def columns(graph: Graph, value: str) -> int:
    """Product of a value's dimensions after the first."""
    total = 1
    for dim in graph.values[value].shape[1:]:
        assert isinstance(dim, int), f"{value} has the symbolic column count {dim}"
        total *= dim
    return total
