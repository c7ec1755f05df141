"""Matching values against an operator's signature: one rule for validation, capture and fake tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from engine_ops.opset import OPS, Attrs, Operator, Param


class Shaped(NamedTuple):
    """dtype and shape of a value; dimensions are integers, symbols of a graph, or torch's symbolic integers."""

    dtype: str
    shape: tuple[Any, ...]


class Mismatch(Exception):
    """A value does not fit its parameter. `param` names the parameter."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def infer(op: str, attrs: Attrs, inputs: Mapping[str, Shaped]) -> dict[str, Shaped]:
    """Types of the outputs of `op` on `inputs` (all required parameters present).

    Raises:
        Mismatch: a dtype, a rank or an extent contradicts the signature, the attributes or another input.
    """
    operator = OPS[op]
    bound: dict[str, Any] = {"i": "int32", **attrs.dims()}
    for param, value in _given(operator, inputs):
        _bind(bound, param, value)
    bound["o"] = attrs.output_dtype() or bound.get("a")
    return {p.name: Shaped(bound[p.dtype], tuple(bound[dim] for dim in p.shape)) for p in operator.outputs}


def _given(operator: Operator, inputs: Mapping[str, Shaped]) -> Iterator[tuple[Param, Shaped]]:
    return ((param, inputs[param.name]) for param in operator.inputs if param.name in inputs)


def _bind(bound: dict[str, Any], param: Param, value: Shaped) -> None:
    if bound.setdefault(param.dtype, value.dtype) != value.dtype:
        raise Mismatch(param.name, f"has dtype {value.dtype}, expected {bound[param.dtype]}")
    if len(value.shape) != len(param.shape):
        raise Mismatch(param.name, f"has {len(value.shape)} dimensions, expected {len(param.shape)}")
    for axis, (name, extent) in enumerate(zip(param.shape, value.shape, strict=True)):
        if name.startswith("2"):
            if isinstance(extent, str) or extent % 2:
                raise Mismatch(param.name, f"has extent {extent} on axis {axis}, expected an even integer")
            name, extent = name[1:], extent // 2
        if bound.setdefault(name, extent) != extent:
            raise Mismatch(param.name, f"has extent {extent} on axis {axis}, expected {bound[name]}")
