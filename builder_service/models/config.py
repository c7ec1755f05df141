"""Reading a checkpoint's config.json: the parts that families share.

Keys that are absent take the default of the model's configuration class in transformers; what this version does not
honour is refused by name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from msgspec.structs import replace

from engine_ops.opset import Rope
from enginehouse.errors import InvalidArgument, Unimplemented

Config = Mapping[str, Any]

MAX_LAYERS = 1024
MAX_INT = 2**31 - 1
_ROPE_KEYS = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}
_COMMON_ROPE_KEYS = {"type", "rope_type", "rope_theta", "partial_rotary_factor"}


class Positions(NamedTuple):
    """Rotary embedding, and the longest sequence that it was made for."""

    rope: Rope
    max_positions: int


def integer(config: Config, key: str, default: int | None = None, *, minimum: int = 1) -> int:
    """`config[key]`, an integer of at least `minimum`; the default stands for an absent or null value."""
    value = default if config.get(key) is None else config[key]
    if value is None:
        _invalid(key, "is missing")
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= MAX_INT:
        _invalid(key, f"is {value!r}, expected an integer from {minimum} to {MAX_INT}")
    return value


def real(config: Config, key: str, default: float | None = None) -> float:
    """`config[key]`, a finite number above 0; the default stands for an absent or null value."""
    value = default if config.get(key) is None else config[key]
    if value is None:
        _invalid(key, "is missing")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        _invalid(key, f"is {value!r}, expected a number above 0")
    return float(value)


def flag(config: Config, key: str, default: bool) -> bool:
    """`config[key]`, true or false."""
    value = default if config.get(key) is None else config[key]
    if not isinstance(value, bool):
        _invalid(key, f"is {value!r}, expected true or false")
    return value


def num_layers(config: Config) -> int:
    """`num_hidden_layers`, within what an engine may have."""
    layers = integer(config, "num_hidden_layers")
    if layers > MAX_LAYERS:
        unsupported("num_hidden_layers", layers, f"at most {MAX_LAYERS}")
    return layers


def window_size(config: Config) -> int | None:
    """`sliding_window`: null is none, an absent one is 4096."""
    if "sliding_window" in config and config["sliding_window"] is None:
        return None
    return integer(config, "sliding_window", 4096)


def require(config: Config, key: str, honoured: tuple[object, ...]) -> None:
    """Refuses a config whose `key` is present and not one of `honoured`."""
    if key in config and config[key] not in honoured:
        unsupported(key, config[key], ", ".join(map(repr, honoured)))


def unsupported(key: str, value: object, supported: str) -> NoReturn:
    """Refuses a model for one of its config values."""
    raise Unimplemented(
        f"The checkpoint's config has {key} = {value!r}; this version supports {supported}.",
        reason="UNSUPPORTED_MODEL_CONFIG",
        metadata={"field": key, "value": value, "supported": supported},
    )


def read_positions(config: Config, head_dim: int) -> Positions:
    """The rope of the old (`rope_theta`, `rope_scaling`) or the new (`rope_parameters`) form of a config."""
    params = {**_mapping(config, "rope_parameters"), **_mapping(config, "rope_scaling")}
    kind = params.get("rope_type", params.get("type", "default"))
    if kind not in tuple(_ROPE_KEYS):
        unsupported("rope_type", kind, ", ".join(_ROPE_KEYS))
    for key in params:
        if key not in _ROPE_KEYS[kind] | _COMMON_ROPE_KEYS:
            unsupported(f"rope_parameters.{key}", params[key], f"{', '.join(sorted(_ROPE_KEYS[kind]))} for {kind}")
    for source in (config, params):
        require(source, "partial_rotary_factor", (1.0, 1, None))
    longest = integer(config, "max_position_embeddings")
    theta = real({"rope_theta": config.get("rope_theta"), **params}, "rope_theta", 10000.0)
    original = _original_length(config, params, kind, longest)
    rope = Rope(kind=kind, theta=theta, dim=head_dim, original_max_position=original)
    return _SCALINGS[kind](rope, params, longest)


def _mapping(config: Config, key: str) -> Config:
    value = config.get(key) or {}
    if not isinstance(value, Mapping):
        _invalid(key, "is no object")
    return value


def _original_length(config: Config, params: Config, kind: str, longest: int) -> int:
    """The length of pretraining: the top-level key wins, as in transformers."""
    if kind not in ("llama3", "yarn"):
        return longest
    return integer({**params, **config}, "original_max_position_embeddings", longest)


def _unscaled(rope: Rope, params: Config, longest: int) -> Positions:
    return Positions(rope, longest)


def _stretched(rope: Rope, params: Config, longest: int) -> Positions:
    factor = real(params, "factor")
    return Positions(replace(rope, factor=factor), _stretched_length(rope, factor, longest))


def _stretched_length(rope: Rope, factor: float, longest: int) -> int:
    stretched = rope.original_max_position * factor
    if stretched > MAX_INT:
        _invalid("factor", f"is {factor:g}, which makes {stretched:g} positions")
    return max(longest, int(stretched))


def _llama3(rope: Rope, params: Config, longest: int) -> Positions:
    low, high = real(params, "low_freq_factor"), real(params, "high_freq_factor")
    if low >= high:
        _invalid("low_freq_factor", f"is {low}, expected less than high_freq_factor {high}")
    return Positions(
        replace(rope, factor=real(params, "factor"), low_freq_factor=low, high_freq_factor=high),
        longest,
    )


def _yarn(rope: Rope, params: Config, longest: int) -> Positions:
    implied = longest / rope.original_max_position
    factor = real(params, "factor", implied)
    scaled = replace(
        rope,
        factor=factor,
        beta_fast=real(params, "beta_fast", 32.0),
        beta_slow=real(params, "beta_slow", 1.0),
        attention_factor=real(params, "attention_factor", _yarn_attention(params, factor)),
        truncate=flag(params, "truncate", True),
    )
    return Positions(scaled, _stretched_length(rope, factor, longest))


def _yarn_attention(params: Config, factor: float) -> float:
    """Scale of cos and sin where the config states none."""
    mscale, all_dim = (real(params, key) if params.get(key) else None for key in ("mscale", "mscale_all_dim"))

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    return scale(mscale) / scale(all_dim) if mscale and all_dim else scale(1.0)


_SCALINGS = {"default": _unscaled, "linear": _stretched, "dynamic": _stretched, "llama3": _llama3, "yarn": _yarn}


def _invalid(key: str, problem: str) -> NoReturn:
    raise InvalidArgument(
        f"The checkpoint's config is wrong: `{key}` {problem}.", reason="INVALID_MODEL_CONFIG", metadata={"field": key}
    )
