"""Cos and sin tables of rotary position embeddings, equal to transformers' within float32 rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine_ops.opset import Rope

Floats = npt.NDArray[np.float32]


class RopeTables(NamedTuple):
    """cos and sin, float32 [num_positions, dim / 2]; `attention_factor` is in them."""

    cos: Floats
    sin: Floats


def rope_tables(rope: Rope, num_positions: int) -> RopeTables:
    """The tables for positions 0 .. num_positions - 1."""
    positions = np.arange(num_positions, dtype=np.float32)[:, None]
    frequencies = _dynamic(rope, positions) if rope.kind == "dynamic" else _FREQUENCIES[rope.kind](rope)
    angles = (positions * frequencies).astype(np.float64)  # rounded to float32 first, as transformers does
    factor = np.float32(rope.attention_factor)
    return RopeTables(np.cos(angles).astype(np.float32) * factor, np.sin(angles).astype(np.float32) * factor)


def _wavelengths(rope: Rope, theta: float | npt.NDArray[np.float64]) -> Floats:
    """theta^(2i / dim), float32 [..., dim / 2]: the exponent rounded to float32, the power rounded once."""
    exponents = (np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)).astype(np.float64)
    return np.power(theta, exponents).astype(np.float32)


def _default(rope: Rope) -> Floats:
    return np.float32(1.0) / _wavelengths(rope, rope.theta)


def _linear(rope: Rope) -> Floats:
    return _default(rope) / np.float32(rope.factor)


def _dynamic(rope: Rope, positions: Floats) -> Floats:
    """One row of frequencies for each position [P, dim / 2]; up to the original length they are the default ones."""
    original = rope.original_max_position
    lengths = np.maximum(positions.astype(np.float64) + 1, original)
    growth = rope.factor * lengths / original - (rope.factor - 1)
    return np.float32(1.0) / _wavelengths(rope, rope.theta * growth ** (rope.dim / (rope.dim - 2)))


def _llama3(rope: Rope) -> Floats:
    """Long wavelengths are stretched by `factor`, short ones kept, those between interpolated."""
    frequencies = _default(rope)
    wavelengths = np.float32(2 * math.pi) / frequencies
    low = rope.original_max_position / rope.low_freq_factor
    high = rope.original_max_position / rope.high_freq_factor
    span = np.float32(rope.high_freq_factor - rope.low_freq_factor)
    smooth = (np.float32(rope.original_max_position) / wavelengths - np.float32(rope.low_freq_factor)) / span
    stretched = frequencies / np.float32(rope.factor)
    between = (np.float32(1) - smooth) * stretched + smooth * frequencies
    result = np.where(wavelengths > low, stretched, np.where(wavelengths < high, frequencies, between))
    return result.astype(np.float32)


def _yarn(rope: Rope) -> Floats:
    """Mixes interpolated and original frequencies over a ramp of dimensions (Peng et al., arXiv:2309.00071)."""
    wavelengths = _wavelengths(rope, rope.theta)
    low, high = (_yarn_dimension(rope, beta) for beta in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001
    ramp = (np.arange(rope.dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = np.float32(1) - np.clip(ramp, 0, 1)
    interpolated = np.float32(1) / (np.float32(rope.factor) * wavelengths)
    mixed: Floats = interpolated * (np.float32(1) - keep) + (np.float32(1) / wavelengths) * keep
    return mixed


def _yarn_dimension(rope: Rope, rotations: float) -> float:
    """The dimension that turns `rotations` times over the original length."""
    turns = rope.original_max_position / (rotations * 2 * math.pi)
    return rope.dim * math.log(turns) / (2 * math.log(rope.theta))


_FREQUENCIES: dict[str, Callable[[Rope], Floats]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
