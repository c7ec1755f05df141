from __future__ import annotations

import pytest

from enginehouse._gen.enginehouse.inference.v1.inference_pb2 import ChatMessage, ChatPrompt, Start
from enginehouse._gen.enginehouse.inference.v1.sampling_pb2 import SamplingParams
from enginehouse.errors import Unimplemented
from service_kit.fields import refuse_unsupported

HONOURED = {"request_id", "chat.messages.role", "sampling.top_k", "kv"}


def refused(start: Start) -> str:
    with pytest.raises(Unimplemented) as caught:
        refuse_unsupported(start, HONOURED)
    assert caught.value.reason == "UNSUPPORTED_FIELD"
    return caught.value.metadata["field"]


def test_what_is_honoured_passes():
    start = Start(request_id="a", sampling=SamplingParams(top_k=0))
    start.kv.cache_salt = "all below a named message"
    start.chat.messages.add(role="user")
    refuse_unsupported(start, HONOURED)


def test_a_set_field_is_refused_by_its_path_even_at_zero():
    assert refused(Start(sampling=SamplingParams(top_p=0.0))) == "sampling.top_p"


def test_a_message_that_is_not_honoured_at_all_is_refused_as_a_whole():
    start = Start()
    start.disaggregated.SetInParent()
    assert refused(start) == "disaggregated"


def test_a_field_inside_a_list_is_refused():
    messages = [ChatMessage(role="user"), ChatMessage(role="user", tool_call_id="1")]
    assert refused(Start(chat=ChatPrompt(messages=messages))) == "chat.messages.tool_call_id"


def test_a_map_is_refused():
    assert refused(Start(labels={"a": "b"})) == "labels"
