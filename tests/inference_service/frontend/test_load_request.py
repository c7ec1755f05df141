"""Every field of LoadModelRequest is honoured or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import model_pb2 as mpb
from inference_service.config import ModelConfig
from inference_service.frontend.load_request import HONOURED, NEUTRAL, to_load_spec

SEEN_ELSEWHERE = {
    "request_id": "names the operation",
    "validate_only": "see test_models",
    "kv_cache.tokens_per_block": "checked against the engine",
    "scheduler.context_chunking_policy": "only the default is taken",
    "target": "only torch is taken",
}
GOOD: dict[str, Any] = {
    "engine": "other",
    "target": "torch",
    "devices": "cpu",
    "scheduler.context_chunking_policy": mpb.CONTEXT_CHUNKING_POLICY_FIRST_COME_FIRST_SERVED,
    "executor.batching_type": mpb.BATCHING_TYPE_STATIC,
    "kv_cache.enable_block_reuse": False,
    "kv_cache.enable_partial_reuse": False,
    "scheduler.enable_chunked_prefill": False,
    "dtype": 1,
}


def leaves(descriptor: Descriptor, prefix: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    for field in descriptor.fields:
        message = field.message_type
        if message is None or message.file.package.startswith("google") or field.is_repeated:
            yield f"{prefix}{field.name}", field
        else:
            yield from leaves(message, f"{prefix}{field.name}.")


LEAVES = dict(leaves(mpb.LoadModelRequest.DESCRIPTOR))


def test_labels_are_bounded_in_number_and_length() -> None:
    for labels in ({"x" * 64: ""}, {"x": "y" * 64}, {f"x{number}": "" for number in range(65)}):
        with pytest.raises(errors.InvalidArgument, match="labels"):
            to_load_spec(mpb.LoadModelRequest(engine="tiny", labels=labels), ModelConfig())


def set_field(request: Message, path: str) -> None:
    *parts, name = path.split(".")
    for part in parts:
        request = getattr(request, part)
    field = LEAVES[path]
    numeric: Any = 0.5 if "FLOAT" in str(field.cpp_type) or field.cpp_type in (5, 6) else 2
    value = GOOD.get(path, True if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else numeric)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        value = GOOD.get(path, "a")
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(request, name)["key"] = "value"
    elif field.message_type is not None:
        getattr(request, name).SetInParent()
    elif field.is_repeated:
        getattr(request, name).append(value)
    else:
        setattr(request, name, value)


@pytest.mark.parametrize("path", LEAVES)
def test_a_set_field_changes_something_or_is_refused_by_name(path: str) -> None:
    base = mpb.LoadModelRequest(engine="tiny")
    request = mpb.LoadModelRequest(engine="tiny")
    set_field(request, path)
    try:
        spec = to_load_spec(request, ModelConfig())
    except errors.Unimplemented as error:
        refused: errors.EnginehouseError | None = error
    else:
        refused = None
    if refused is not None:
        assert refused.reason == "UNSUPPORTED_FIELD"
        assert path.startswith(refused.metadata["field"])
    elif path not in NEUTRAL:
        assert path in HONOURED
        assert path in SEEN_ELSEWHERE or spec != to_load_spec(base, ModelConfig()), f"{path} changed nothing"


def test_the_lists_name_only_fields_that_exist() -> None:
    assert HONOURED | NEUTRAL.keys() <= LEAVES.keys()
    assert not HONOURED & NEUTRAL.keys()


@pytest.mark.parametrize("path", NEUTRAL)
def test_a_neutral_value_is_accepted_and_another_is_not(path: str) -> None:
    part, name = path.split(".")
    request = mpb.LoadModelRequest(engine="tiny")
    setattr(getattr(request, part), name, NEUTRAL[path])
    assert to_load_spec(request, ModelConfig()) == to_load_spec(mpb.LoadModelRequest(engine="tiny"), ModelConfig())
    setattr(getattr(request, part), name, not NEUTRAL[path] if isinstance(NEUTRAL[path], bool) else NEUTRAL[path] + 1)
    with pytest.raises(errors.Unimplemented):
        to_load_spec(request, ModelConfig())
