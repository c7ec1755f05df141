"""Any start, however malformed, fails alone: random messages over the whole contract beside valid requests."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb

from .serving import VOCAB, Rig, start

INTS = (0, 1, -1, 2, 20, 255, 256, 257, VOCAB - 1, VOCAB, 2**31 - 1, -(2**31))
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-8, 1e30, -1e30, float("nan"), float("inf"), float("-inf"))
TEXTS = ("", "a", "\x00", "🌶👩‍👩‍👧", "</s>", "x" * 5000, "\n", "{{ 1/0 }}", "../../etc/passwd", "tiny", "tiny@1")
WHOLE = {
    FieldDescriptor.TYPE_UINT64: (0, 1, 2**64 - 1),
    FieldDescriptor.TYPE_INT64: (0, 1, -1, 2**63 - 1),
}


def value(field: FieldDescriptor, dice: random.Random) -> Any:
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return dice.choice(FLOATS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = dice.choice(TEXTS)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return dice.random() < 0.5
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return dice.choice((0, 1, 2, 99))
    return dice.choice(WHOLE.get(field.type, INTS))


def fill(message: Message, dice: random.Random, depth: int = 0, chance: float = 0.12) -> None:
    """Sets a few fields, each to something extreme."""
    for field in message.DESCRIPTOR.fields:
        if dice.random() > chance or depth > 4:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            for _ in range(dice.choice((1, 2, 70))):
                if field.message_type is not None:
                    fill(getattr(message, field.name).add(), dice, depth + 1, 0.5)
                else:
                    getattr(message, field.name).append(value(field, dice))
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            fill(getattr(message, field.name), dice, depth + 1, 0.3)
        else:
            setattr(message, field.name, value(field, dice))


def poison(number: int) -> pb.Start:
    dice = random.Random(number)
    request = start(str(number)) if dice.random() < 0.7 else pb.Start()
    fill(request, dice, chance=dice.choice((0.03, 0.12, 0.4)))
    request.request_id = str(number)
    return request


async def test_random_starts_fail_alone_and_never_as_our_fault(rig: Rig) -> None:
    rig.runner.scripts[7] = list(range(10, 40))
    valid = {"stream": True, "sampling": {"seed": 7, "max_tokens": 30}}
    alone = (await rig.one(start("alone", **valid))).token_ids
    starts = [poison(number) for number in range(400)]
    for i in range(0, 400, 20):
        starts.insert(i, start(f"valid{i}", **valid))
    outcomes = await rig.generate(*starts)
    assert len(outcomes) == len(starts)
    failures = [outcome.error for outcome in outcomes.values() if outcome.kinds[-1] == "error"]
    assert {type(error) for error in failures} <= {errors.InvalidArgument, errors.Unimplemented, errors.NotFound}
    assert len(failures) < 400
    for i in range(0, 400, 20):
        assert outcomes[f"valid{i}"].token_ids == alone
    await rig.settled()
    assert rig.model.engine.executor.stats().used_blocks == 0


async def test_lists_of_a_million_are_counted_not_walked_through(rig: Rig) -> None:
    many = start("ids", ids=[5] * 1_000_000 + [-1])
    assert (await rig.one(many)).error.reason == "PROMPT_TOO_LONG"
    kept = start("kept", ids=[5] * 1_000_000, truncate_prompt_tokens=4, sampling={"max_tokens": 2})
    assert (await rig.one(kept)).only("accepted").prompt_tokens == 4
    single = start("stops", sampling={"stop_token_sequences": [{"ids": [9]}] * 2000})
    error = (await rig.one(single)).error
    assert (error.reason, error.metadata["field"]) == ("TOO_MANY", "sampling.stop_token_sequences")
