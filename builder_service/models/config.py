"""Reading a checkpoint's config.json: the parts that families share.

Keys that are absent take the default of the model's configuration class in transformers; what this version does not
honour is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

from engine_ops.opset import Rope
from enginehouse.errors import InvalidArgument, Unimplemented

Config = Mapping[str, Any]
T = TypeVar("T", int, float, bool)

_ROPE_KEYS = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor", "original_max_position_embeddings"},
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


def number(config: Config, key: str, default: T | None = None) -> T:
    """`config[key]`, of the default's type, or an integer above 0 where there is no default."""
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        _invalid(key, "is missing")
    wanted: tuple[type, ...] = (
        (int,) if default is None else (int, float) if isinstance(default, float) else (type(default),)
    )
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        _invalid(key, f"is {value!r}, expected {wanted[-1].__name__}")
    if not isinstance(value, bool) and not 0 < value < math.inf:
        _invalid(key, f"is {value!r}, expected a number above 0")
    return type(default)(value) if default is not None else value


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
    params = {**(config.get("rope_parameters") or {}), **(config.get("rope_scaling") or {})}
    kind = params.get("rope_type", params.get("type", "default"))
    if kind not in _ROPE_KEYS:
        unsupported("rope_type", kind, ", ".join(_ROPE_KEYS))
    for key in params:
        if key not in _ROPE_KEYS[kind] | _COMMON_ROPE_KEYS:
            unsupported(f"rope_parameters.{key}", params[key], f"{', '.join(sorted(_ROPE_KEYS[kind]))} for {kind}")
    for source in (config, params):
        require(source, "partial_rotary_factor", (1.0, 1, None))
    longest: int = number(config, "max_position_embeddings")
    theta = number({"rope_theta": config.get("rope_theta"), **params}, "rope_theta", 10000.0)
    original = _original_length(config, params, kind, longest)
    rope = Rope(kind=kind, theta=theta, dim=head_dim, original_max_position=original)
    return _SCALINGS[kind](rope, params, longest)


def _original_length(config: Config, params: Config, kind: str, longest: int) -> int:
    """The length of pretraining: the top-level key wins, as in transformers."""
    if kind not in ("llama3", "yarn"):
        return longest
    return number({**params, **config}, "original_max_position_embeddings", longest)


def _unscaled(rope: Rope, params: Config, longest: int) -> Positions:
    return Positions(rope, longest)


def _stretched(rope: Rope, params: Config, longest: int) -> Positions:
    factor = _factor(params)
    return Positions(_replace(rope, factor=factor), max(longest, int(rope.original_max_position * factor)))


def _llama3(rope: Rope, params: Config, longest: int) -> Positions:
    low, high = (_required(params, f"{name}_freq_factor") for name in ("low", "high"))
    if low >= high:
        _invalid("low_freq_factor", f"is {low}, expected less than high_freq_factor {high}")
    return Positions(_replace(rope, factor=_factor(params), low_freq_factor=low, high_freq_factor=high), longest)


def _yarn(rope: Rope, params: Config, longest: int) -> Positions:
    implied = longest / rope.original_max_position
    factor = number(params, "factor", implied) if "factor" in params else implied
    attention = params.get("attention_factor")
    scaled = _replace(
        rope,
        factor=factor,
        beta_fast=number(params, "beta_fast", 32.0),
        beta_slow=number(params, "beta_slow", 1.0),
        attention_factor=_yarn_attention(params, factor) if attention is None else float(attention),
        truncate=number(params, "truncate", True),
    )
    return Positions(scaled, max(longest, int(rope.original_max_position * factor)))


def _yarn_attention(params: Config, factor: float) -> float:
    """Scale of cos and sin where the config states none."""
    mscale, all_dim = params.get("mscale"), params.get("mscale_all_dim")

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    return scale(mscale) / scale(all_dim) if mscale and all_dim else scale(1.0)


_SCALINGS = {"default": _unscaled, "linear": _stretched, "dynamic": _stretched, "llama3": _llama3, "yarn": _yarn}


def _factor(params: Config) -> float:
    return _required(params, "factor")


def _required(params: Config, key: str) -> float:
    if params.get(key) is None:
        _invalid(f"rope_parameters.{key}", "is missing")
    return number(params, key, 1.0)


def _replace(rope: Rope, **changes: Any) -> Rope:
    return type(rope)(**{**{name: getattr(rope, name) for name in rope.__struct_fields__}, **changes})


def _invalid(key: str, problem: str) -> NoReturn:
    raise InvalidArgument(
        f"The checkpoint's config is wrong: `{key}` {problem}.", reason="INVALID_MODEL_CONFIG", metadata={"field": key}
    )
