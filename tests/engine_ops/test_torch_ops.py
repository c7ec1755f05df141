"""`torch.ops.enginehouse.*`: schemas, fake outputs and results agree with the references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from engine_ops.opset import ATTRS, OPS, Attrs, Linear, NoAttrs, Norm, PagedAttention, QkvRopeKv, Rope
from engine_ops.reference import REFERENCES
from engine_ops.torch_ops import apply

INT = torch.int32


def arguments() -> dict[str, tuple[Attrs, list[Any]]]:
    """One valid application of each operator: 5 tokens of 2 sequences, blocks of 4."""
    torch.manual_seed(0)
    x, weight = torch.randn(5, 8), torch.rand(8)
    start, lengths = torch.tensor([0, 3, 5], dtype=INT), torch.tensor([3, 6], dtype=INT)
    tables, positions = torch.tensor([[1, 0], [2, 3]], dtype=INT), torch.tensor([0, 1, 2, 4, 5], dtype=INT)
    pools = [torch.randn(4, 1, 4, 8) for _ in range(2)]
    rope = QkvRopeKv(2, 1, 8, Rope("default", 100.0, 8, 64), 1e-5)
    return {
        "embedding": (NoAttrs(), [torch.tensor([1, 0, 2], dtype=INT), torch.randn(4, 8)]),
        "rms_norm": (Norm(1e-5), [x, weight]),
        "add_rms_norm": (Norm(1e-5), [x, torch.randn(5, 8), weight]),
        "linear": (
            Linear(out_dtype="float32"),
            [x.bfloat16(), torch.randn(3, 8).bfloat16(), torch.randn(3).bfloat16()],
        ),
        "qkv_rope_kv": (rope, [torch.randn(5, 32), positions, start, tables, *pools, weight, weight]),
        "paged_attention": (PagedAttention(2, 1, 8, 0.3, 4), [torch.randn(5, 2, 8), start, lengths, tables, *pools]),
        "silu_and_mul": (NoAttrs(), [x]),
        "add": (NoAttrs(), [x, x]),
        "select_rows": (NoAttrs(), [x, torch.tensor([4, 4, 1], dtype=INT)]),
    }


def clones(tensors: list[Any]) -> list[Any]:
    return [t.clone() for t in tensors]


def test_the_tables_cover_one_set_of_operators() -> None:
    assert set(OPS) == set(REFERENCES) == set(ATTRS) == set(arguments())


@pytest.mark.parametrize("op", OPS)
def test_the_operator_equals_its_reference_and_mutates_the_same_pools(op: str) -> None:
    attrs, tensors = arguments()[op]
    ours, theirs = clones(tensors), clones(tensors)
    for actual, expected in zip(apply(op, attrs, *ours), REFERENCES[op](attrs, *theirs), strict=True):
        assert torch.equal(actual, expected)
    changed = {p.name for p, a, b in zip(OPS[op].inputs, ours, tensors, strict=False) if not torch.equal(a, b)}
    assert changed == {p.name for p in OPS[op].inputs if p.mutable}
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("op", OPS)
def test_fake_outputs_have_the_real_types(op: str) -> None:
    attrs, tensors = arguments()[op]
    real = apply(op, attrs, *clones(tensors))
    with FakeTensorMode() as mode:
        fake = apply(op, attrs, *(mode.from_tensor(t) for t in tensors))
    assert [(t.dtype, t.shape) for t in fake] == [(t.dtype, t.shape) for t in real]
