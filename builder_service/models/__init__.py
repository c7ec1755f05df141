"""Models: a spec read from the checkpoint's config, its weights' names, and one decoder over the operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builder_service.models.families import FAMILIES
from builder_service.models.spec import DecoderSpec, SourceNames, WeightParts, weight_parts
from enginehouse.errors import InvalidArgument, Unimplemented

__all__ = ["DecoderSpec", "SourceNames", "WeightParts", "read_spec", "weight_parts"]


def read_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The spec of a checkpoint with this config.json.

    Raises:
        Unimplemented: the architecture (reason UNSUPPORTED_ARCHITECTURE) or one of its options (reason
            UNSUPPORTED_MODEL_CONFIG, or REMOTE_CODE for `auto_map`) is not supported.
        InvalidArgument: a value is missing or impossible (reason INVALID_MODEL_CONFIG).
    """
    architectures, model_type = _architectures(config), config.get("model_type", "")
    if config.get("auto_map"):
        raise Unimplemented(
            "The checkpoint wants its own code (`auto_map`), which is never run. Use a checkpoint of a supported "
            "architecture without it.",
            reason="REMOTE_CODE",
            metadata={"field": "auto_map"},
        )
    if config.get("quantization_config"):
        raise Unimplemented(
            "The checkpoint is quantised (`quantization_config`), which is not supported yet; use the original one.",
            reason="UNSUPPORTED_MODEL_CONFIG",
            metadata={"field": "quantization_config"},
        )
    for family in FAMILIES:
        if family.architecture in architectures or (not architectures and family.model_type == model_type):
            return family.read(config)
    name = ", ".join(architectures) or str(model_type) or "none"
    supported = ", ".join(family.architecture for family in FAMILIES)
    raise Unimplemented(
        f"Architecture {name} is not supported. Supported: {supported}.",
        reason="UNSUPPORTED_ARCHITECTURE",
        metadata={"architecture": name, "supported": supported},
    )


def _architectures(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(
            "The checkpoint's config is wrong: `architectures` is no list of names.",
            reason="INVALID_MODEL_CONFIG",
            metadata={"field": "architectures"},
        )
    return names
