from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference_service.executor.messages import FinishReason, RequestOutput, TokenLogprobs
from inference_service.text.output import Delta, DeltaBuffer, Finish, OutputProcessor, TextOptions, special_stops
from inference_service.text.vocabulary import Vocabulary


def logprob(token_id: int) -> TokenLogprobs:
    return TokenLogprobs((token_id,), (-0.5,), (1,))


def output(
    ids: list[int], finish: FinishReason | None = None, *, stop_id: int | None = None, logprobs: bool = False
) -> RequestOutput:
    return RequestOutput(
        request_id=1,
        token_ids=ids,
        logprobs=[logprob(i) for i in ids] if logprobs else None,
        finish_reason=finish,
        stop_token_id=stop_id,
    )


def run(
    options: TextOptions, vocabulary: Vocabulary, outputs: list[RequestOutput]
) -> tuple[list[Delta], Finish | None]:
    processor = OutputProcessor(options, vocabulary)
    deltas, finish = [], None
    for each in outputs:
        progress = processor.process(each)
        deltas += [progress.delta] if progress.delta else []
        finish = finish or progress.finish
    return deltas, finish


def joined(deltas: list[Delta]) -> Delta:
    buffer = DeltaBuffer()
    for delta in deltas:
        buffer.add(delta)
    return buffer.take()


def ids_of(vocabulary: Vocabulary, *texts: str) -> list[int]:
    return [i for text in texts for i in vocabulary._backend.encode(text, add_special_tokens=False).ids]


def chars(vocabulary: Vocabulary, text: str) -> list[int]:
    """One token for each character."""
    return ids_of(vocabulary, *text)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.data(),
    stops=st.lists(st.text(alphabet="aeDF :", min_size=1, max_size=3), max_size=2),
    include=st.booleans(),
    min_tokens=st.integers(0, 10),
)
def test_deltas_concatenate_to_the_same_output_however_the_steps_are_cut(
    any_vocabulary: Vocabulary, data: st.DataObject, stops: list[str], include: bool, min_tokens: int
) -> None:
    ids = data.draw(st.lists(st.integers(0, len(any_vocabulary) - 1), min_size=1, max_size=25))
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=len(ids), max_size=len(ids)))
    options = TextOptions(stops=tuple(stops), include_stop=include, min_tokens=min_tokens)
    steps, start = [], 0
    for size in sizes:
        steps.append(output(ids[start : start + size], logprobs=True))
        start += size
    steps.append(output([], "length"))
    deltas, finish = run(options, any_vocabulary, steps)
    whole, whole_finish = run(options, any_vocabulary, [output(ids, "length", logprobs=True)])
    assert joined(deltas) == joined(whole)
    assert finish == whole_finish
    assert all(delta.token_ids for delta in deltas)
    assert all([lp.token_ids[0] for lp in delta.logprobs] == delta.token_ids for delta in deltas)
    if not stops:
        assert joined(deltas).text == any_vocabulary.decode(ids, skip_special_tokens=True)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(alphabet="abDEF é€🌶", min_size=1, max_size=20))
def test_text_and_ids_of_every_delta_cover_the_same_tokens(bytes_vocabulary: Vocabulary, text: str) -> None:
    ids = ids_of(bytes_vocabulary, text)
    deltas, _ = run(
        TextOptions(stops=("DEFGHIJKL",)), bytes_vocabulary, [*(output([i]) for i in ids), output([], "length")]
    )
    assert all(delta.text == bytes_vocabulary.decode(delta.token_ids) for delta in deltas)


def test_the_start_of_a_stop_string_is_not_streamed(bytes_vocabulary: Vocabulary) -> None:
    steps = [output([i]) for i in chars(bytes_vocabulary, "xDEFGHIJy")]
    deltas, finish = run(TextOptions(stops=("DEFGHIJ",)), bytes_vocabulary, steps)
    assert [delta.text for delta in deltas] == ["x", ""]
    assert len(joined(deltas).token_ids) == 8
    assert finish == Finish("stop", "DEFGHIJ", None, None, 8)


def test_a_disproved_stop_string_is_released(bytes_vocabulary: Vocabulary) -> None:
    steps = [output([i]) for i in chars(bytes_vocabulary, "DEFGX")]
    deltas, finish = run(TextOptions(stops=("DEFGHIJ",)), bytes_vocabulary, steps)
    assert [delta.text for delta in deltas] == ["DEFGX"]
    assert finish is None


def test_what_is_held_is_released_at_the_end(bytes_vocabulary: Vocabulary) -> None:
    steps = [*(output([i]) for i in chars(bytes_vocabulary, "DEF")), output([], "length")]
    deltas, finish = run(TextOptions(stops=("DEFGHIJ",)), bytes_vocabulary, steps)
    assert joined(deltas).text == "DEF"
    assert finish is not None
    assert finish.reason == "length"


@pytest.mark.parametrize(("include", "text"), [(False, "foo"), (True, "foo:")])
def test_a_stop_string_inside_a_token_is_cut_exactly(bytes_vocabulary: Vocabulary, include: bool, text: str) -> None:
    ids = ids_of(bytes_vocabulary, "foo:bar")
    deltas, finish = run(TextOptions(stops=(":",), include_stop=include), bytes_vocabulary, [output(ids)])
    assert joined(deltas).text == text
    assert finish is not None
    assert finish.stop_text == ":"


def test_the_executor_is_told_of_a_stop_string_it_cannot_see(bytes_vocabulary: Vocabulary) -> None:
    processor = OutputProcessor(TextOptions(stops=(":",)), bytes_vocabulary)
    assert processor.process(output(ids_of(bytes_vocabulary, "a:"))).stop_executor
    assert processor.process(output(ids_of(bytes_vocabulary, "late"))).delta is None


@pytest.mark.parametrize(
    ("skip", "include", "text"),
    [(True, False, "hi"), (False, False, "hi"), (True, True, "hi"), (False, True, "hi</s>")],
)
def test_an_invisible_end_id_cuts_no_text(bytes_vocabulary: Vocabulary, skip: bool, include: bool, text: str) -> None:
    end = bytes_vocabulary.token_id("</s>")
    options = TextOptions(skip_special_tokens=skip, include_stop=include, end_ids=frozenset({end}))
    deltas, finish = run(
        options, bytes_vocabulary, [output([*ids_of(bytes_vocabulary, "hi"), end], "stop", stop_id=end)]
    )
    assert joined(deltas).text == text
    assert joined(deltas).token_ids[-1] == end
    assert finish is not None
    assert (finish.stop_text, finish.stop_token_id) == (None, None)


@pytest.mark.parametrize(("include", "text"), [(False, "hi"), (True, "hi<|im_end|>")])
def test_a_stop_string_that_is_a_special_token_stops_by_id(
    bytes_vocabulary: Vocabulary, include: bool, text: str
) -> None:
    stop_of_id = special_stops(["<|im_end|>", "hello"], bytes_vocabulary)
    (stop_id,) = stop_of_id
    options = TextOptions(stops=("<|im_end|>",), stop_of_id=stop_of_id, include_stop=include)
    deltas, finish = run(
        options, bytes_vocabulary, [output([*ids_of(bytes_vocabulary, "hi"), stop_id], "stop", stop_id=stop_id)]
    )
    assert joined(deltas).text == text
    assert finish is not None
    assert finish.stop_text == "<|im_end|>"


def test_a_stop_id_of_the_caller_is_named_and_its_text_hidden(bytes_vocabulary: Vocabulary) -> None:
    *ids, stop_id = ids_of(bytes_vocabulary, "hello,")
    deltas, finish = run(TextOptions(), bytes_vocabulary, [output([*ids, stop_id], "stop", stop_id=stop_id)])
    assert joined(deltas).text == "hello"
    assert finish is not None
    assert finish.stop_token_id == stop_id


def test_no_stop_string_ends_the_output_before_min_tokens(bytes_vocabulary: Vocabulary) -> None:
    steps = [output([i]) for i in chars(bytes_vocabulary, "a:bc:d")]
    deltas, finish = run(TextOptions(stops=(":",), min_tokens=5), bytes_vocabulary, steps)
    assert joined(deltas).text == "a:bc"
    assert finish is not None
    assert finish.completion_tokens == 5


def test_the_prompt_is_echoed_without_being_counted_or_searched(bytes_vocabulary: Vocabulary) -> None:
    prompt = tuple(ids_of(bytes_vocabulary, "a:b "))
    options = TextOptions(stops=(":",), echo=prompt)
    deltas, finish = run(options, bytes_vocabulary, [output([i]) for i in chars(bytes_vocabulary, "cd:e")])
    assert joined(deltas).text == "a:b cd"
    assert finish is not None
    assert finish.completion_tokens == 3


def test_cumulative_logprob_is_the_sum_over_the_output_tokens(bytes_vocabulary: Vocabulary) -> None:
    ids = chars(bytes_vocabulary, "abc")
    _, finish = run(TextOptions(), bytes_vocabulary, [output(ids, "length", logprobs=True)])
    assert finish is not None
    assert finish.cumulative_logprob == pytest.approx(-1.5)


def test_without_detokenisation_ids_flow_and_there_is_no_text() -> None:
    processor = OutputProcessor(TextOptions(detokenize=False), None)
    assert processor.process(output([7, 8])).delta == Delta([7, 8], "", [])
