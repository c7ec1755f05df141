"""rope_tables equals transformers' rotary tables for every kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine_ops.opset import Rope
from engine_ops.rope import rope_tables

HEAD_DIM, LONGEST = 32, 128
KINDS: dict[str, tuple[Rope, dict[str, object]]] = {
    "linear": (Rope("linear", 10000.0, HEAD_DIM, LONGEST, factor=2.5), {"factor": 2.5}),
    "llama3": (
        Rope("llama3", 500000.0, HEAD_DIM, 64, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0),
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    ),
    "yarn": (
        Rope("yarn", 10000.0, HEAD_DIM, 32, factor=4.0, attention_factor=0.1 * np.log(4.0) + 1.0),
        {"factor": 4.0, "original_max_position_embeddings": 32},
    ),
    "yarn-all-options": (
        Rope(
            "yarn",
            10000.0,
            HEAD_DIM,
            32,
            factor=4.0,
            beta_fast=8.0,
            beta_slow=2.0,
            attention_factor=1.25,
            truncate=False,
        ),
        {
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 8.0,
            "beta_slow": 2.0,
            "attention_factor": 1.25,
            "truncate": False,
        },
    ),
}


def expected_tables(kind: str, theta: float, params: dict[str, object], length: int | None, rows: int) -> np.ndarray:
    parameters = {"rope_type": kind, "rope_theta": theta, **params}
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM, num_attention_heads=4, max_position_embeddings=LONGEST, rope_parameters=parameters
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)
    angles = torch.arange(rows).float()[:, None] * frequencies[None].float()
    return torch.stack([angles.cos() * factor, angles.sin() * factor]).numpy()


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_tables_equal_transformers(kind: str, share: float) -> None:
    rope, params = KINDS[kind]
    params = {**params, "partial_rotary_factor": share} if share < 1 else params
    rope = Rope(**{**{f: getattr(rope, f) for f in rope.__struct_fields__}, "dim": int(HEAD_DIM * share)})
    expected = expected_tables(rope.kind, rope.theta, params, None, LONGEST)
    assert np.abs(np.stack(rope_tables(rope, LONGEST)) - expected).max() < 3e-5  # float32 angles of about 100


def test_default_tables_equal_transformers() -> None:
    expected = expected_tables("linear", 5000.0, {"factor": 1.0}, None, LONGEST)
    assert np.abs(np.stack(rope_tables(Rope("default", 5000.0, HEAD_DIM, LONGEST), LONGEST)) - expected).max() < 3e-5


@pytest.mark.parametrize("position", [10, LONGEST - 1, LONGEST, LONGEST + 1, 3 * LONGEST])
def test_dynamic_row_uses_the_base_of_its_own_length(position: int) -> None:
    tables = np.stack(rope_tables(Rope("dynamic", 10000.0, HEAD_DIM, LONGEST, factor=2.0), 4 * LONGEST))
    expected = expected_tables("dynamic", 10000.0, {"factor": 2.0}, position + 1, position + 1)
    assert np.abs(tables[:, position] - expected[:, position]).max() < 1e-4


def test_longer_tables_extend_shorter_ones() -> None:
    for rope, _ in KINDS.values():
        short, long = rope_tables(rope, 10), rope_tables(rope, 300)
        assert np.array_equal(long.cos[:10], short.cos)
        assert np.array_equal(long.sin[:10], short.sin)
        assert short.cos.dtype == np.float32
        assert short.cos.shape == (10, rope.dim // 2)
