"""RequestOutput as a state: whatever the parts in which events arrive, the diffs add up to the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse import RequestOutput
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2
from enginehouse._inbox import Inbox
from enginehouse.outputs import RequestSetup

Event = inference_pb2.Event
TEXTS = st.text(max_size=4)


def new_output(inbox: Inbox, n: int = 1, *, streaming: bool = True) -> RequestOutput:
    return RequestOutput(
        RequestSetup(
            request_id=1,
            prompt="p",
            prompt_token_ids=None,
            n=n,
            streaming=streaming,
            inbox=inbox,
            abort=lambda: None,
        )
    )


def delta(index: int, token: int, text: str) -> Event:
    part = inference_pb2.Delta(output_index=index, token_ids=[token], text=text)
    part.logprobs.add().top.add(token_id=token, logprob=-1.0)
    return Event(delta=part)


@given(
    deltas=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 99), TEXTS), max_size=30),
    cuts=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_diffs_add_up_in_any_parts(deltas: list[tuple[int, int, str]], cuts: list[bool]) -> None:
    inbox = Inbox()
    output = new_output(inbox, 2)
    texts, ids = ["", ""], [[], []]
    steps = 0

    def step() -> None:
        nonlocal steps
        shown = next(output)
        steps += 1
        for item in shown.outputs:
            texts[item.index] += item.text_diff
            ids[item.index] += item.token_ids_diff
            assert [list(row) for row in item.logprobs_diff] == [[token] for token in item.token_ids_diff]

    for (index, token, text), cut in zip(deltas, cuts, strict=False):
        inbox.push(delta(index, token, text))
        if cut:
            step()
    for index in range(2):
        inbox.push(Event(finished=inference_pb2.Finished(output_index=index, reason=1)))
    inbox.push(Event(done=inference_pb2.Done()), last=True)
    step()
    with pytest.raises(StopIteration):
        next(output)
    assert texts == ["".join(text for at, _, text in deltas if at == index) for index in range(2)]
    assert ids == [[token for at, token, _ in deltas if at == index] for index in range(2)]
    assert [item.text for item in output.outputs] == texts
    assert steps == sum(cuts[: len(deltas)]) + 1


def test_attributes_stand_still_within_a_step() -> None:
    inbox = Inbox()
    output = new_output(inbox)
    inbox.push(delta(0, 1, "a"))
    next(output)
    inbox.push(delta(0, 2, "b"))
    assert (output.outputs[0].text, output.outputs[0].text_diff) == ("a", "a")
    next(output)
    assert (output.outputs[0].text, output.outputs[0].text_diff) == ("ab", "b")


def test_logits_arrive_in_chunks() -> None:
    inbox = Inbox()
    output = new_output(inbox)
    rows = np.arange(12, dtype="<f4").reshape(4, 3)
    kind = inference_pb2.TENSOR_KIND_GENERATION_LOGITS
    for first in (0, 2):
        chunk = inference_pb2.TensorChunk(kind=kind, first_row=first, rows=2, row_shape=[3], dtype=1)
        chunk.data = rows[first : first + 2].tobytes()
        inbox.push(Event(tensor_chunk=chunk))
    bits = (np.float32(1.5).view(np.uint32) >> 16).astype("<u2")
    context = inference_pb2.TensorChunk(
        kind=inference_pb2.TENSOR_KIND_CONTEXT_LOGITS, rows=1, row_shape=[1], dtype=common_pb2.DATA_TYPE_BFLOAT16
    )
    context.data = bits.tobytes()
    inbox.push(Event(tensor_chunk=context))
    inbox.push(Event(done=inference_pb2.Done()), last=True)
    output.result()
    assert output.outputs[0].generation_logits is not None
    np.testing.assert_array_equal(output.outputs[0].generation_logits, rows)
    assert output.context_logits is not None
    assert output.context_logits.tolist() == [[1.5]]


def test_what_finished_says() -> None:
    inbox = Inbox()
    output = new_output(inbox, streaming=False)
    finished = inference_pb2.Finished(reason=1, stop_text="END", text="x", token_ids=[1], cumulative_logprob=-2.0)
    inbox.push(Event(finished=finished))
    done = inference_pb2.Done()
    done.perf_metrics.arrival_time.FromMilliseconds(1500)
    done.perf_metrics.kv_cache.num_reused_blocks = 3
    inbox.push(Event(done=done), last=True)
    item = output.result().outputs[0]
    assert (item.finish_reason, item.stop_reason, item.cumulative_logprob) == ("stop", "END", -2.0)
    metrics = item.request_perf_metrics
    assert metrics is not None
    assert (metrics.arrival_time, metrics.first_token_time, metrics.num_reused_blocks) == (1.5, None, 3)
    assert metrics.acceptance_rate is None
    assert "request_id=1" in repr(output)
