"""The laws of a Generate stream, over real sockets; the runner draws from scripts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from inference_service.executor.messages import RequestOutput
from inference_service.frontend.request import LiveRequest
from inference_service.frontend.session import GenerateSession, SessionLimits
from inference_service.text.output import OutputProcessor

from .serving import EOS, IM_END, NUM_BLOCKS, Rig, serve, small_queue, start


def script(rig: Rig, text: str, *, one_token_per_char: bool = True) -> list[int]:
    tokenizer = rig.model.spec.tokenizer
    parts = list(text) if one_token_per_char else [text]
    return [i for part in parts for i in tokenizer.encode(part, add_special_tokens=False)]


async def test_a_request_is_accepted_streams_finishes_and_is_done(rig: Rig) -> None:
    rig.runner.scripts[7] = script(rig, "hello")
    outcome = await rig.one(start(stream=True, sampling={"seed": 7, "max_tokens": 5}))
    assert outcome.kinds[0] == "accepted"
    assert outcome.text == "hello"
    assert outcome.reason == "LENGTH"
    assert outcome.only("accepted").prompt_tokens == 3
    assert outcome.only("accepted").model == "tiny"
    assert outcome.only("accepted").version == "engines/tiny/versions/1"
    usage = outcome.only("done").usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 5)


@pytest.mark.parametrize("interval", [1, 2, 3, 7, 100])
async def test_deltas_concatenate_to_the_unary_result_at_any_interval(rig: Rig, interval: int) -> None:
    rig.runner.scripts[7] = script(rig, "the € fox 🌶 DEF jumps")
    fields = {"sampling": {"seed": 7, "max_tokens": 22, "stop": ["DEFGHI"]}, "output": {"logprobs": 0}}
    outcomes = await rig.generate(
        start("unary", **fields), start("stream", stream=True, stream_interval=interval, **fields)
    )
    unary, stream = outcomes["unary"], outcomes["stream"]
    assert unary.kinds == ["accepted", "finished", "done"]
    assert (stream.text, stream.token_ids) == (unary.text, unary.token_ids)
    finished = unary.only("finished")
    assert [lp for delta in stream.all("delta") for lp in delta.logprobs] == list(finished.logprobs)
    assert len(finished.logprobs) == len(finished.token_ids) == finished.completion_tokens
    assert stream.only("finished").cumulative_logprob == pytest.approx(finished.cumulative_logprob)
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in stream.all("delta"))


async def test_the_end_id_stops_and_shows_nothing(rig: Rig) -> None:
    rig.runner.scripts[7] = [*script(rig, "hi"), EOS]
    outcome = await rig.one(start(sampling={"seed": 7}))
    assert (outcome.text, outcome.reason) == ("hi", "STOP")
    assert outcome.token_ids[-1] == EOS
    assert outcome.only("finished").WhichOneof("stop_match") is None


async def test_ignore_eos_goes_on(rig: Rig) -> None:
    rig.runner.scripts[7] = [EOS] * 4
    outcome = await rig.one(start(sampling={"seed": 7, "ignore_eos": True, "max_tokens": 4}))
    assert outcome.reason == "LENGTH"
    assert outcome.token_ids == [EOS] * 4


async def test_a_stop_string_ends_the_request_in_the_executor_too(rig: Rig) -> None:
    rig.runner.scripts[7] = script(rig, "abc:defgh" * 20)
    outcome = await rig.one(start(stream=True, sampling={"seed": 7, "stop": ["c:d"], "max_tokens": 100}))
    assert (outcome.text, outcome.reason) == ("ab", "STOP")
    assert outcome.only("finished").stop_text == "c:d"
    assert outcome.only("finished").completion_tokens == 5
    await rig.settled()
    assert rig.model.engine.executor.stats().used_blocks == 0


async def test_a_special_stop_string_stops_by_id(rig: Rig) -> None:
    rig.runner.scripts[7] = [*script(rig, "hi"), IM_END]
    outcome = await rig.one(start(sampling={"seed": 7, "stop": ["<|im_end|>"]}))
    assert (outcome.text, outcome.only("finished").stop_text) == ("hi", "<|im_end|>")


@pytest.mark.parametrize("what", ["stop", "stop_token_ids", "eos"])
async def test_no_stop_ends_before_min_tokens(rig: Rig, what: str) -> None:
    colon = script(rig, ":")[0]
    stopper = EOS if what == "eos" else colon
    rig.runner.scripts[7] = [stopper, *script(rig, "abcd"), stopper, *script(rig, "z")]
    sampling = {"seed": 7, "min_tokens": 5, "max_tokens": 20}
    if what != "eos":
        sampling[what] = [":"] if what == "stop" else [colon]
    if what != "stop":  # the runner must not draw a banned id
        rig.runner.scripts[7][0] = script(rig, "x")[0]
    outcome = await rig.one(start(sampling=sampling))
    assert outcome.reason == "STOP"
    assert outcome.only("finished").completion_tokens == 6
    banned = [rows.banned.get(0, ()) for rows in rig.runner.rows_seen]
    assert [EOS in ids for ids in banned][:6] == [True] * 4 + [False] * 2
    assert (colon in banned[0]) == (what == "stop_token_ids")


async def test_text_and_chat_prompts_tell_their_tokens(rig: Rig) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    outcomes = await rig.generate(start("text", None, text="hello fox"), start("chat", None, chat=chat))
    tokenizer = rig.model.spec.tokenizer
    assert list(outcomes["text"].only("prompt").token_ids) == tokenizer.encode("hello fox")
    rendered = "<s>user: hello<|im_end|>assistant:"
    assert outcomes["chat"].only("prompt").text == rendered
    assert list(outcomes["chat"].only("prompt").token_ids) == tokenizer.encode(rendered, add_special_tokens=False)


async def test_a_long_text_is_encoded_off_the_event_loop(rig: Rig) -> None:
    outcome = await rig.one(start(ids=None, text="the " * 2000, truncate_prompt_tokens=50))
    assert outcome.only("accepted").prompt_tokens == 50


async def test_the_prompt_is_echoed_when_asked(rig: Rig) -> None:
    prompt = script(rig, "abc")
    rig.runner.scripts[7] = script(rig, "de")
    fields = {"sampling": {"seed": 7, "max_tokens": 2}, "output": {"exclude_input_from_output": False}}
    outcomes = await rig.generate(start("u", prompt, **fields), start("s", prompt, stream=True, **fields))
    for outcome in outcomes.values():
        assert (outcome.text, outcome.token_ids) == ("abcde", [*prompt, *rig.runner.scripts[7]])
        assert outcome.only("done").usage.completion_tokens == 2


async def test_perf_metrics_come_when_asked_and_in_order(rig: Rig) -> None:
    outcomes = await rig.generate(start("with", output={"return_perf_metrics": True}), start("without"))
    metrics = outcomes["with"].only("done").perf_metrics
    times = [metrics.arrival_time, metrics.first_scheduled_time, metrics.first_token_time, metrics.last_token_time]
    nanos = [stamp.ToNanoseconds() for stamp in times]
    assert nanos == sorted(nanos)
    assert nanos[0] > 0
    assert metrics.kv_cache.num_total_allocated_blocks > 0
    assert not outcomes["without"].only("done").HasField("perf_metrics")


@pytest.mark.parametrize(
    ("bad", "error", "reason"),
    [
        (start(ids=[]), errors.InvalidArgument, "EMPTY_PROMPT"),
        (start(ids=None, text=""), errors.InvalidArgument, "EMPTY_PROMPT"),
        (start(ids=None), errors.InvalidArgument, "NO_PROMPT"),
        (start(ids=[3, 410]), errors.InvalidArgument, "TOKEN_ID_OUT_OF_RANGE"),
        (start(ids=[-1]), errors.InvalidArgument, "TOKEN_ID_OUT_OF_RANGE"),
        (start(ids=[3] * 256), errors.InvalidArgument, "PROMPT_TOO_LONG"),
        (start(sampling={"max_tokens": 254}), errors.InvalidArgument, "SEQUENCE_TOO_LONG"),
        (start(sampling={"temperature": float("nan")}), errors.InvalidArgument, "OUT_OF_RANGE"),
        (start(sampling={"n": 2}), errors.Unimplemented, "UNSUPPORTED_FIELD"),
        (start(sampling={"use_beam_search": True}), errors.Unimplemented, "UNSUPPORTED_FIELD"),
        (start(model="other"), errors.NotFound, "MODEL_NOT_FOUND"),
        (start(model="tiny@9"), errors.NotFound, "MODEL_VERSION_NOT_SERVED"),
        (start(ids=None, chat={}), errors.InvalidArgument, "EMPTY_PROMPT"),
    ],
)
async def test_a_bad_start_fails_alone_in_band_before_it_costs_a_step(
    rig: Rig, bad: pb.Start, error: type[errors.EnginehouseError], reason: str
) -> None:
    bad.request_id = "bad"
    refused = await rig.one(bad)
    assert rig.runner.steps == 0
    assert refused.kinds == ["error"]
    assert type(refused.error) is error
    assert refused.error.reason == reason
    outcomes = await rig.generate(start("before"), bad, start("after"))
    assert [outcomes[name].kinds[-1] for name in ("before", "bad", "after")] == ["done", "error", "done"]
    await rig.settled()


async def test_the_longest_sequence_that_fits_works(rig: Rig) -> None:
    outcomes = await rig.generate(
        start("prompt", [5] * 255, sampling={"max_tokens": 1}),
        start("default", [5] * 250),
        start("out", [5], sampling={"max_tokens": 255, "ignore_eos": True}),
    )
    assert outcomes["prompt"].only("done").usage.completion_tokens == 1
    assert outcomes["default"].only("done").usage.completion_tokens == 6
    assert outcomes["out"].only("done").usage.completion_tokens == 255


async def test_a_duplicate_id_fails_and_the_first_goes_on(rig: Rig) -> None:
    rig.runner.gate.clear()
    stream = rig.stream()
    await stream.start(start("x"))
    await stream.until("accepted")
    await stream.start(start("x"))
    assert errors.from_status((await stream.until("error")).error).reason == "REQUEST_ID_IN_USE"
    rig.runner.gate.set()
    await stream.until("done", "x")
    await stream.start(start("x"))
    await stream.until("done", "x")


async def test_a_malformed_message_ends_the_stream_with_a_status(rig: Rig) -> None:
    rig.runner.step_seconds = 0.01
    stream = rig.stream()
    await stream.start(start("x", sampling={"max_tokens": 200, "ignore_eos": True}))
    await stream.until("accepted")
    await stream.call.write(pb.GenerateRequest())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.outcomes()
    assert errors.from_rpc_error(caught.value).reason == "MALFORMED_MESSAGE"
    await rig.settled()


async def test_a_malformed_message_is_not_lost_while_an_answer_is_sent() -> None:
    sending, read = asyncio.Event(), asyncio.Event()

    def refuse(request: LiveRequest, start: pb.Start, deadline: float | None) -> None:
        request.fail(errors.NotFound("no such model"))

    async def messages() -> AsyncIterator[pb.GenerateRequest]:
        yield pb.GenerateRequest(start=start("x"))
        await sending.wait()
        read.set()
        yield pb.GenerateRequest()

    async def write(response: pb.GenerateResponse) -> None:
        sending.set()
        await read.wait()

    with pytest.raises(errors.InvalidArgument) as caught:
        await GenerateSession(refuse, SessionLimits(), None).run(messages(), write)
    assert caught.value.reason == "MALFORMED_MESSAGE"


async def test_bytes_that_are_no_message_end_the_stream_with_a_status(rig: Rig) -> None:
    call = rig.channel.stream_stream("/enginehouse.inference.v1.InferenceService/Generate")(iter([b"\x12\x07"]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    assert errors.from_rpc_error(caught.value).reason == "MALFORMED_MESSAGE"


async def test_an_over_long_message_ends_the_stream_with_a_status_and_harms_nobody(rig: Rig) -> None:
    stream = rig.stream()
    await stream.start(start("x", None, text="a" * (33 << 20)))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.outcomes()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await rig.one(start())).reason == "LENGTH"


async def test_a_template_that_does_not_end_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference_service.frontend.admission.ENCODE_SECONDS", 0.1)
    loop = "{% for i in range(90000) %}{% for j in range(30) %}{% endfor %}{% endfor %}"
    monkeypatch.setattr(rig.model.spec.tokenizer._hf, "chat_template", loop)
    refused = (await rig.one(start(ids=None, chat={"messages": [{"role": "user", "content": "a"}]}))).error
    assert refused.reason == "ENCODING_TOO_SLOW"


async def test_cancel_answers_with_finished_cancelled_and_done(rig: Rig) -> None:
    rig.runner.step_seconds = 0.01
    stream = rig.stream()
    await stream.start(start("x", stream=True, sampling={"max_tokens": 200, "ignore_eos": True}))
    await stream.until("delta")
    await stream.cancel("x")
    await stream.cancel("x")
    await stream.cancel("unknown")
    await stream.call.done_writing()
    outcome = (await stream.outcomes())["x"]
    assert outcome.reason == "CANCELLED"
    assert outcome.only("finished").completion_tokens == len(outcome.token_ids) < 200
    await rig.settled()
    assert rig.model.engine.executor.stats().used_blocks == 0


async def test_cancel_during_admission_is_answered_too(rig: Rig) -> None:
    stream = rig.stream()
    await stream.start(start("x", None, text="the " * 30_000, truncate_prompt_tokens=9))
    await stream.cancel("x")
    await stream.call.done_writing()
    outcome = (await stream.outcomes())["x"]
    assert outcome.reason == "CANCELLED"
    assert outcome.kinds == ["accepted", "prompt", "finished", "done"]


async def test_half_close_lets_live_requests_finish(rig: Rig) -> None:
    rig.runner.step_seconds = 0.002
    outcomes = await rig.generate(*(start(str(i), sampling={"max_tokens": 20}) for i in range(12)))
    assert [outcome.reason for outcome in outcomes.values()] == ["LENGTH"] * 12


async def test_a_dropped_stream_cancels_everything_and_frees_its_blocks(rig: Rig) -> None:
    rig.runner.step_seconds = 0.01
    stream = rig.stream()
    for i in range(5):
        await stream.start(start(str(i), stream=True, sampling={"max_tokens": 200, "ignore_eos": True}))
    await stream.until("delta")
    stream.call.cancel()
    await rig.settled()
    steps = rig.runner.steps
    assert rig.model.engine.executor.stats().used_blocks == 0
    assert (await rig.one(start())).reason == "LENGTH"
    assert steps < 100


CLIENT = """
import sys, time
import grpc
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb, inference_pb2_grpc

def starts():
    for i in range(4):
        sampling = {"max_tokens": 200, "ignore_eos": True}
        start = pb.Start(request_id=str(i), token_ids={"ids": [5, 6]}, stream=True, sampling=sampling)
        yield pb.GenerateRequest(start=start)
    time.sleep(60)

call = inference_pb2_grpc.InferenceServiceStub(grpc.insecure_channel(sys.argv[1])).Generate(starts())
for response in call:
    print("got", flush=True)
"""


async def test_a_client_that_is_killed_leaves_nothing_behind(rig: Rig) -> None:
    rig.runner.step_seconds = 0.05
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, f"127.0.0.1:{rig.daemon.port}", stdout=asyncio.subprocess.PIPE
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"got\n"
    try:
        async with asyncio.timeout(10):
            while len(rig.model.live) < 4:
                await asyncio.sleep(0.01)
    finally:
        client.kill()
        await client.wait()
    await rig.settled()
    assert rig.runner.steps < 200
    assert rig.model.engine.executor.stats().used_blocks == 0


async def test_events_of_one_step_share_a_message(rig: Rig) -> None:
    rig.runner.gate.clear()
    rig.runner.step_seconds = 0.02
    stream = rig.stream()
    for i in range(4):
        await stream.start(start(str(i), stream=True, sampling={"max_tokens": 6}))
    for i in range(4):
        await stream.until("accepted", str(i))
    rig.runner.gate.set()
    await stream.call.done_writing()
    await stream.outcomes()
    shared = [r for r in stream.responses if sum(e.WhichOneof("event") == "delta" for e in r.events) == 4]
    assert len(shared) >= 4


@pytest.mark.parametrize("where", ["time_limit", "rpc"])
async def test_the_earlier_of_time_limit_and_deadline_ends_with_what_was_generated(rig: Rig, where: str) -> None:
    rig.runner.step_seconds = 0.02
    request = start("x", sampling={"max_tokens": 200, "ignore_eos": True})
    if where == "time_limit":
        request.time_limit.CopyFrom(Duration(nanos=300_000_000))
    stream = rig.stream(timeout=1.0 if where == "rpc" else 20.0)
    await stream.start(request)
    await stream.call.done_writing()
    outcome = (await stream.outcomes())["x"]
    assert outcome.reason == "TIMEOUT"
    assert 0 < outcome.only("finished").completion_tokens == len(outcome.token_ids) < 200


async def test_a_full_queue_refuses_with_advice(tmp_path: Path, bytes_tokenizer_dir: Path) -> None:
    async with serve(tmp_path, bytes_tokenizer_dir, config=small_queue(batch=2, queue=1)) as rig:
        rig.runner.gate.clear()
        stream = rig.stream()
        for i in range(4):
            await stream.start(start(str(i)))
        refusal = errors.from_status((await stream.until("error")).error)
        assert isinstance(refusal, errors.ResourceExhausted)
        assert refusal.reason == "QUEUE_FULL"
        assert refusal.retry_after is not None
        rig.runner.gate.set()
        await stream.call.done_writing()
        outcomes = await stream.outcomes()
        assert [outcomes[str(i)].kinds[-1] for i in range(4)] == ["done", "done", "done", "error"]


async def test_a_failed_step_fails_its_requests_and_no_later_one(rig: Rig) -> None:
    rig.runner.fail = RuntimeError("secret path /etc/x")
    error = (await rig.one(start())).error
    assert isinstance(error, errors.Internal)
    assert "secret" not in str(error)
    rig.runner.fail = None
    assert (await rig.one(start())).reason == "LENGTH"


async def test_an_output_that_cannot_be_processed_fails_its_request_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = OutputProcessor.process

    def faulty(self: OutputProcessor, output: RequestOutput) -> object:
        if output.token_ids[:1] == [99]:
            raise ValueError("a fault")
        return process(self, output)

    monkeypatch.setattr(OutputProcessor, "process", faulty)
    rig.runner.scripts[7] = [10, 11, 99]
    outcomes = await rig.generate(
        start("bad", stream=True, sampling={"seed": 7, "max_tokens": 20}), start("good", sampling={"max_tokens": 20})
    )
    assert outcomes["bad"].error.reason == "OUTPUT_FAILED"
    assert outcomes["bad"].token_ids == [10, 11]
    assert outcomes["good"].reason == "LENGTH"
    await rig.settled()
    assert rig.model.engine.executor.stats().used_blocks == 0


async def test_no_seed_means_fresh_entropy_and_default_sampling_is_greedy(rig: Rig) -> None:
    await rig.generate(*(start(str(i), sampling={"max_tokens": 1}) for i in range(4)))
    seen = [sampling for rows in rig.runner.rows_seen for sampling in rows.sampling]
    assert len({sampling.seed for sampling in seen}) == 4
    assert {sampling.temperature for sampling in seen} == {0.0}


async def test_abort_ends_requests_by_their_server_ids(rig: Rig) -> None:
    rig.runner.step_seconds = 0.01
    stream = rig.stream()
    for name in ("a", "b"):
        await stream.start(start(name, sampling={"max_tokens": 100, "ignore_eos": True}))
    server_id = (await stream.until("accepted", "a")).accepted.server_id
    response = await rig.inference.Abort(pb.AbortRequest(server_ids=[server_id, "unknown"]))
    assert (list(response.aborted), list(response.not_found)) == ([server_id], ["unknown"])
    await stream.call.done_writing()
    outcomes = await stream.outcomes()
    assert (outcomes["a"].reason, outcomes["b"].reason) == ("CANCELLED", "LENGTH")


async def test_a_storm_of_cancels_drops_and_errors_leaves_nothing_behind(rig: Rig) -> None:
    async def client(number: int) -> None:
        stream = rig.stream()
        for i in range(6):
            await stream.start(start(str(i), [5 + i] * 9, stream=i % 2 == 0, sampling={"max_tokens": 30}))
        if number % 3 == 0:
            await stream.cancel("1")
        if number % 3 == 1:
            await stream.until("accepted")
            stream.call.cancel()
            return
        await stream.start(start("bad", ids=[-1]))
        await stream.call.done_writing()
        await stream.outcomes()

    tasks_before = len(asyncio.all_tasks())
    await asyncio.gather(*(client(i) for i in range(15)))
    await rig.settled()
    stats = rig.model.engine.executor.stats()
    assert (stats.used_blocks, stats.num_running, stats.num_waiting) == (0, 0, 0)
    assert stats.max_blocks == NUM_BLOCKS - 1
    await asyncio.sleep(0.1)
    assert len(asyncio.all_tasks()) <= tasks_before + 2
