"""Every field of Start is honoured or refused by name; every range is checked with its numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from inference_service.frontend.fields import HONOURED, NEUTRAL
from inference_service.frontend.prompts import ModelSpec, encode_prompt
from inference_service.frontend.validation import Plan, check_start, make_plan
from inference_service.text.tokenizer import Tokenizer

from .serving import EOS, VOCAB, start

_NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32: 3,
    FieldDescriptor.CPPTYPE_INT64: 3,
    FieldDescriptor.CPPTYPE_UINT32: 3,
    FieldDescriptor.CPPTYPE_UINT64: 3,
    FieldDescriptor.CPPTYPE_FLOAT: 0.25,
    FieldDescriptor.CPPTYPE_DOUBLE: 0.25,
    FieldDescriptor.CPPTYPE_ENUM: 2,
}


@pytest.fixture(scope="module")
def spec(pieces_tokenizer_dir: Any) -> ModelSpec:
    return ModelSpec(
        vocab_size=VOCAB,
        max_seq_len=256,
        max_prompt_tokens=256,
        eos_token_ids=(EOS,),
        use_priority=True,
        tokenizer=Tokenizer(pieces_tokenizer_dir),
    )


def plan_of(request: pb.Start, spec: ModelSpec) -> Plan:
    check_start(request)
    return make_plan(request, encode_prompt(request, spec), spec)


def leaves(descriptor: Descriptor, prefix: str = "") -> Iterator[tuple[str, list[FieldDescriptor]]]:
    """Every field that can be set below a message: path and the fields on the way."""
    for field in descriptor.fields:
        path = f"{prefix}{field.name}"
        if _is_leaf(path, field):
            yield path, [field]
        else:
            for below, fields in leaves(field.message_type, f"{path}."):
                yield below, [field, *fields]


def _is_leaf(path: str, field: FieldDescriptor) -> bool:
    message = field.message_type
    if message is None or field.is_repeated or path in ("token_ids", "embeddings"):
        return True
    return message.file.package.startswith("google") or message.name in ("Tensor", "TokenIds")


LEAVES = dict(leaves(pb.Start.DESCRIPTOR))


def set_field(request: Message, fields: list[FieldDescriptor]) -> None:
    """Sets the field at the end of the path to something that asks for something."""
    for field in fields[:-1]:
        request = getattr(request, field.name)
        request.SetInParent()
    field = fields[-1]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        number = field.message_type.fields_by_name["key"].cpp_type != FieldDescriptor.CPPTYPE_STRING
        getattr(request, field.name)[3 if number else "key"] = 0.25 if number else "value"
    elif field.message_type is not None and field.is_repeated:
        getattr(request, field.name).add()
    elif field.message_type is not None:
        getattr(request, field.name).SetInParent()
        if field.message_type.name == "Duration":
            getattr(request, field.name).seconds = 3
    else:
        value: Any = _NUMBERS.get(field.cpp_type, "3")
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            value = not (field.has_presence and field.name in DEFAULT_TRUE)
        if field.type == FieldDescriptor.TYPE_BYTES:
            value = b"3"
        if field.is_repeated:
            getattr(request, field.name).append(value)
        else:
            setattr(request, field.name, value)


DEFAULT_TRUE = {
    "exclude_input_from_output",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "add_special_tokens",
    "add_generation_prompt",
}
UNSEEN_IN_A_PLAN = {
    "request_id": "names the events",
    "model": "chooses the model",
    "sampling.pad_id": "packed batches are never padded",
    "output.include_stop_str_in_output": "see test_output",
    "chat.tools": "for templates that use it",
    "chat.template_kwargs": "for templates that use it",
}


def base(path: str) -> pb.Start:
    kind = path.split(".")[0]
    if kind == "chat":
        return pb.Start(request_id="r", chat={"messages": [{"role": "user", "content": "a"}]}, sampling={"seed": 1})
    if kind in ("text", "add_special_tokens"):
        return pb.Start(request_id="r", text="abcdefgh", sampling={"seed": 1})
    return start("r", [7, 8, 9, 10], sampling={"seed": 1})


@pytest.mark.parametrize("path", LEAVES)
def test_a_set_field_changes_something_or_is_refused_by_name(path: str, spec: ModelSpec) -> None:
    before = base(path)
    request = pb.Start()
    request.CopyFrom(before)
    set_field(request, LEAVES[path])
    if path == "token_ids":
        request.token_ids.ids.append(11)
    if path == "add_special_tokens":
        request.add_special_tokens = False
    if path == "chat.continue_final_message":
        request.chat.messages[0].role = "assistant"
    honoured = any(path == name or path.startswith(f"{name}.") for name in HONOURED)
    refusal, after = None, None
    try:
        after = plan_of(request, spec)
    except errors.EnginehouseError as error:
        refusal = error
    if isinstance(refusal, errors.Unimplemented):
        field = refusal.metadata["field"]
        assert not honoured
        assert refusal.reason == "UNSUPPORTED_FIELD"
        assert path.startswith(field) or field.startswith(path)
        return
    assert honoured or path == "sampling.stop_token_sequences", f"{path} is neither honoured nor refused"
    if refusal is not None:
        assert isinstance(refusal, errors.InvalidArgument)
        assert refusal.metadata["field"]
        return
    assert path in UNSEEN_IN_A_PLAN or after != plan_of(before, spec), f"{path} changed nothing"


def test_the_honoured_list_names_only_fields_that_exist() -> None:
    for path in HONOURED | NEUTRAL.keys():
        assert any(leaf == path or leaf.startswith(f"{path}.") for leaf in LEAVES), path


@pytest.mark.parametrize("path", NEUTRAL)
def test_a_neutral_value_is_accepted_and_changes_nothing(path: str, spec: ModelSpec) -> None:
    part, name = path.split(".")
    request = base(path)
    setattr(getattr(request, part), name, NEUTRAL[path])
    assert plan_of(request, spec) == plan_of(base(path), spec)
    setattr(getattr(request, part), name, NEUTRAL[path] + 1)
    with pytest.raises(errors.Unimplemented) as caught:
        check_start(request)
    assert caught.value.metadata["field"] == path


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"temperature": -0.1}, "sampling.temperature"),
        ({"temperature": math.inf}, "sampling.temperature"),
        ({"temperature": math.nan}, "sampling.temperature"),
        ({"top_p": 1.1}, "sampling.top_p"),
        ({"top_p": -0.1}, "sampling.top_p"),
        ({"top_p": math.nan}, "sampling.top_p"),
        ({"min_p": 1.5}, "sampling.min_p"),
        ({"top_k": -1}, "sampling.top_k"),
        ({"max_tokens": 0}, "sampling.max_tokens"),
        ({"max_tokens": -5}, "sampling.max_tokens"),
        ({"max_tokens": 2**31 - 1}, "sampling.max_tokens"),
        ({"min_tokens": 33}, "sampling.min_tokens"),
        ({"min_tokens": -1}, "sampling.min_tokens"),
        ({"end_id": -2}, "sampling.end_id"),
        ({"end_id": VOCAB}, "sampling.end_id"),
        ({"pad_id": VOCAB}, "sampling.pad_id"),
        ({"stop_token_ids": [VOCAB]}, "sampling.stop_token_ids"),
        ({"stop_token_ids": [-1]}, "sampling.stop_token_ids"),
        ({"stop_token_ids": [5] * 1025}, "sampling.stop_token_ids"),
        ({"stop": [""]}, "sampling.stop"),
        ({"stop": ["x" * 1025]}, "sampling.stop"),
        ({"stop": [str(i) for i in range(65)]}, "sampling.stop"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_field(spec: ModelSpec, sampling: dict[str, Any], field: str) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        plan_of(start(sampling=sampling), spec)
    assert caught.value.metadata["field"] == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"output": {"logprobs": 21}}, "output.logprobs"),
        ({"output": {"logprobs": -1}}, "output.logprobs"),
        ({"output": {"detokenize": False}, "sampling": {"stop": ["x"]}}, "sampling.stop"),
        ({"priority": 1.5}, "priority"),
        ({"stream_interval": 0}, "stream_interval"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"time_limit": {"seconds": 0}}, "time_limit"),
        ({"time_limit": {"seconds": -1}}, "time_limit"),
        ({"kv": {"cache_salt": "s" * 300}}, "kv.cache_salt"),
        ({"labels": {str(i): "" for i in range(17)}}, "labels"),
        ({"labels": {"k": "v" * 64}}, "labels"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "r" * 129}, "request_id"),
    ],
)
def test_other_values_out_of_range_are_refused_with_their_field(
    spec: ModelSpec, fields: dict[str, Any], field: str
) -> None:
    request = start(**{"request_id": "r", **fields})
    with pytest.raises(errors.InvalidArgument) as caught:
        plan_of(request, spec)
    assert caught.value.metadata["field"] == field


@pytest.mark.parametrize(
    ("sampling", "greedy"),
    [
        ({}, True),
        ({"seed": 3}, True),
        ({"temperature": 0.0}, True),
        ({"temperature": 1e-8}, True),
        ({"temperature": 0.0, "top_p": 0.5}, True),
        ({"top_k": 1, "temperature": 3.0}, True),
        ({"top_p": 0.0}, True),
        ({"temperature": 0.7}, False),
        ({"top_p": 0.9}, False),
        ({"top_k": 5}, False),
        ({"min_p": 0.1}, False),
    ],
)
def test_the_default_is_greedy_and_any_sampling_field_samples(
    spec: ModelSpec, sampling: dict[str, Any], greedy: bool
) -> None:
    resolved = plan_of(start(sampling=sampling), spec).sampling
    assert (resolved.temperature == 0.0) == greedy
    if not greedy:
        assert resolved.temperature == pytest.approx(sampling.get("temperature", 1.0))


def test_without_a_seed_every_request_draws_its_own(spec: ModelSpec) -> None:
    assert len({plan_of(start(), spec).sampling.seed for _ in range(10)}) == 10
    assert plan_of(start(sampling={"seed": 2**64 - 1}), spec).sampling.seed == 2**64 - 1


def test_an_explicit_max_tokens_that_does_not_fit_is_refused_and_the_default_shrinks(spec: ModelSpec) -> None:
    prompt = [5] * 250
    assert plan_of(start(ids=prompt), spec).sampling.max_tokens == 6
    assert plan_of(start(ids=prompt, sampling={"max_tokens": 6}), spec).sampling.max_tokens == 6
    with pytest.raises(errors.InvalidArgument, match=r"250 prompt tokens leave room for 6 \(max_seq_len 256\)"):
        plan_of(start(ids=prompt, sampling={"max_tokens": 7}), spec)


def test_end_ids_follow_the_engine_unless_the_caller_says_otherwise(spec: ModelSpec) -> None:
    def stops(**sampling: Any) -> set[int]:
        return set(plan_of(start(sampling=sampling), spec).sampling.stop_token_ids)

    assert stops() == {EOS}
    assert stops(end_id=9) == {9}
    assert stops(end_id=-1) == set()
    assert stops(ignore_eos=True) == set()
    assert stops(ignore_eos=True, stop_token_ids=[8]) == {8}
    assert stops(stop_token_ids=[8], stop_token_sequences=[{"ids": [9]}]) == {EOS, 8, 9}


def test_logprobs_zero_is_not_off(spec: ModelSpec) -> None:
    assert plan_of(start(output={"logprobs": 0}), spec).sampling.logprobs == 0
    assert plan_of(start(), spec).sampling.logprobs is None


def test_truncation_keeps_the_last_tokens(spec: ModelSpec) -> None:
    assert plan_of(start(ids=[7, 8, 9], truncate_prompt_tokens=2), spec).prompt.token_ids == [8, 9]


def test_an_engine_without_a_tokenizer_takes_ids_only(spec: ModelSpec) -> None:
    bare = dataclasses.replace(spec, tokenizer=None)
    assert plan_of(start(), bare).text.detokenize is False
    for request in (pb.Start(request_id="r", text="a"), start(output={"detokenize": True})):
        with pytest.raises(errors.FailedPrecondition, match="no tokenizer"):
            plan_of(request, bare)
