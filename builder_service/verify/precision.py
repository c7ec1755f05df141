"""Half-precision matrix products at float32 speed, for CPUs without instructions for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

BLOCK_ELEMENTS = 1 << 24
"""Elements of a weight that are widened at once."""
FEW_ROWS = 16
HALF = (torch.bfloat16, torch.float16)


class Float32Accumulate(TorchFunctionMode):
    """Within this mode, a half-precision linear layer over many rows is computed in float32 and rounded once.

    That is what hardware does with half-precision inputs; without such instructions torch takes twice as long. For
    few rows widening the weight costs more than it saves.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is functional.linear and args[0].dtype in HALF and args[0].numel() >= FEW_ROWS * args[0].shape[-1]:
            return _linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = max(1, BLOCK_ELEMENTS // weight.shape[1])
    wide = x.float()
    y = torch.cat([functional.linear(wide, block.float()) for block in torch.split(weight, rows)], dim=-1)
    return (y if bias is None else y + bias.float()).to(x.dtype)
