"""A graph made ready to run: typed attributes, and every value replaced by where it is found.

Activations live in numbered slots that are reused once their last reader has run, so a step holds a few of them
rather than one for every node.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from engine_ops.graph import Dim, Graph, Node
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


class Slot(NamedTuple):
    """Holds one value at a time, [rows, <= columns]; `rows` is the symbol T (tokens) or R (logits rows)."""

    rows: Dim
    columns: int


class Plan(NamedTuple):
    """`logits`: the slot of the graph's output."""

    instructions: tuple[Instruction, ...]
    slots: tuple[Slot, ...]
    logits: int


def make_plan(graph: Graph) -> Plan:
    """Assigns slots by a linear scan over the nodes, which are in execution order."""
    output = graph.outputs["logits"]
    last_use = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs.values()}
    last_use[output] = len(graph.nodes)
    places: dict[str, int] = {}
    slots: list[Slot] = []
    free: list[int] = []
    instructions = []
    for i, node in enumerate(graph.nodes):
        inputs = {parameter: _source(graph, places, value) for parameter, value in node.inputs.items()}
        for value in node.outputs:
            places[value] = _take(slots, free, Slot(graph.values[value].shape[0], columns(graph, value)))
        outputs = tuple(places[value] for value in node.outputs)
        instructions.append(Instruction(node, node.typed_attrs(), inputs, outputs))
        # Released only after the outputs have theirs: an operator never writes where it reads.
        used = {*node.inputs.values(), *node.outputs}
        free += [places[v] for v in used if v in places and last_use.get(v, i) <= i]
    return Plan(tuple(instructions), tuple(slots), places[output])


def _take(slots: list[Slot], free: list[int], wanted: Slot) -> int:
    """A free slot for the same rows, widened where needed, or a new one."""
    for slot in free:
        if slots[slot].rows == wanted.rows:
            free.remove(slot)
            slots[slot] = Slot(wanted.rows, max(slots[slot].columns, wanted.columns))
            return slot
    slots.append(wanted)
    return len(slots) - 1


def _source(graph: Graph, places: dict[str, int], value: str) -> Source:
    if value in places:
        return Source("slot", value, places[value])
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
