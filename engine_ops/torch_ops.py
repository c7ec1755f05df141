"""The operators as `torch.ops.enginehouse.<op>`, so that torch.export can trace a model written over them.

Each takes its tensors in signature order and its attributes as a JSON string; everything is derived from `OPS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import torch
from torch import Tensor

from engine_ops.opset import OPS, Attrs, Operator, Param
from engine_ops.reference import REFERENCES
from engine_ops.signature import Shaped, infer

NAMESPACE = "enginehouse"
_library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]


def apply(op: str, attrs: Attrs, *tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Calls `torch.ops.enginehouse.<op>`. Returns its outputs, always as a tuple."""
    padding = (None,) * (len(OPS[op].inputs) - len(tensors))
    result = getattr(torch.ops.enginehouse, op)(*tensors, *padding, msgspec.json.encode(attrs).decode())
    return (result,) if isinstance(result, Tensor) else tuple(result)


def schema(op: str) -> str:
    """The operator's torch schema."""
    tensors = [_schema_param(index, param) for index, param in enumerate(OPS[op].inputs)]
    returns = ", ".join(["Tensor"] * len(OPS[op].outputs))
    return f"{op}({', '.join(tensors)}, str attrs) -> ({returns})"


def _schema_param(index: int, param: Param) -> str:
    alias = f"(m{index}!)" if param.mutable else ""
    return f"Tensor{alias}{'?' if param.optional else ''} {param.name}"


@lru_cache(maxsize=1024)
def decode_attrs(op: str, attrs: str) -> Attrs:
    """The attribute record that `apply` encoded."""
    return msgspec.json.decode(attrs, type=OPS[op].attrs)


def _real(op: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        *tensors, attrs = arguments
        outputs = REFERENCES[op](decode_attrs(op, attrs), *tensors)
        return outputs if len(outputs) > 1 else outputs[0]

    return call


def _fake(op: str, operator: Operator) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        *tensors, attrs = arguments
        given = {p.name: _shaped(t) for p, t in zip(operator.inputs, tensors, strict=True) if t is not None}
        device = tensors[0].device
        outputs = tuple(
            torch.empty(shaped.shape, dtype=getattr(torch, shaped.dtype), device=device)
            for shaped in infer(op, decode_attrs(op, attrs), given).values()
        )
        return outputs if len(outputs) > 1 else outputs[0]

    return call


def _shaped(tensor: Tensor) -> Shaped:
    return Shaped(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def _register() -> None:
    for op, operator in OPS.items():
        _library.define(schema(op))  # type: ignore[no-untyped-call]
        _library.impl(op, _real(op), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{NAMESPACE}::{op}", _fake(op, operator), lib=_library)


_register()
