"""LLM against a scripted server over real sockets."""

from __future__ import annotations

import asyncio
import copy
import gc
import http.server
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from enginehouse import (
    LLM,
    Cancelled,
    InvalidArgument,
    NotFound,
    RequestOutput,
    ResourceExhausted,
    SamplingParams,
    Unavailable,
)
from tests.client.scripted import ScriptedServer

FIVE = SamplingParams(max_tokens=5)
TEXT = " t0 t1 t2 t3 t4"


def test_one_prompt_gives_one_output(llm: LLM) -> None:
    output = llm.generate("echo", FIVE, use_tqdm=False)
    assert isinstance(output, RequestOutput)
    assert output.outputs[0].text == TEXT
    assert output.outputs[0].token_ids == [100, 101, 102, 103, 104]
    assert output.outputs[0].finish_reason == "length"
    assert output.outputs[0].length == 5
    assert (output.prompt, output.prompt_token_ids, output.finished) == ("echo", [7, 8, 9], True)
    assert output.usage is not None
    assert (output.usage.prompt_tokens, output.usage.cached_tokens, output.usage.completion_tokens) == (3, 1, 5)


def test_a_list_of_ints_is_one_prompt(llm: LLM, server: ScriptedServer) -> None:
    output = llm.generate([1, 2, 3], FIVE, use_tqdm=False)
    assert isinstance(output, RequestOutput)
    assert output.prompt_token_ids == [1, 2, 3]
    assert output.prompt is None
    assert list(server.inference.starts[0].token_ids.ids) == [1, 2, 3]


def test_an_over_long_prompt_fails_alone(llm: LLM, server: ScriptedServer) -> None:
    slow = llm.generate_async("slow", FIVE)
    with pytest.raises(InvalidArgument, match="more than the 33554432 of a message"):
        llm.generate("x" * 34_000_000, use_tqdm=False)
    slow.abort()
    assert slow.result(5).outputs[0].finish_reason == "cancelled"
    assert server.inference.streams == 1


def test_a_list_gives_a_list_in_order(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=count) for count in (3, 1, 2)]
    outputs = llm.generate(["echo", [1, 2], {"prompt": "echo"}], params, use_tqdm=False)
    assert isinstance(outputs, list)
    assert [output.outputs[0].length for output in outputs] == [3, 1, 2]


def test_an_empty_list_gives_an_empty_list(llm: LLM) -> None:
    assert llm.generate([], FIVE) == []


def test_many_prompts_share_one_stream(llm: LLM, server: ScriptedServer) -> None:
    outputs = llm.generate(["echo"] * 200, FIVE, use_tqdm=False)
    assert [output.outputs[0].text for output in outputs] == [TEXT] * 200
    assert server.inference.streams == 1
    assert len({output.request_id for output in outputs}) == 200


def test_list_valued_arguments_must_match_in_length(llm: LLM, server: ScriptedServer) -> None:
    with pytest.raises(ValueError, match="sampling_params has 1 items for 2 prompts"):
        llm.generate(["echo", "echo"], [FIVE])
    with pytest.raises(ValueError, match="cache_salt has 3 items for 2 prompts"):
        llm.generate(["echo", "echo"], FIVE, cache_salt=["a", "b", "c"])
    assert server.inference.starts == []


def test_side_arguments_are_matched_by_position(llm: LLM, server: ScriptedServer) -> None:
    llm.generate(["echo", "echo"], FIVE, cache_salt=["a", None], priority=[0.1, 0.9], use_tqdm=False)
    starts = sorted(server.inference.starts, key=lambda start: int(start.request_id))
    assert [start.kv.cache_salt for start in starts] == ["a", ""]
    assert [round(start.priority, 3) for start in starts] == [0.1, 0.9]


def test_sampling_params_are_not_changed(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, stop=["x"])
    before = copy.deepcopy(params)
    llm.generate(["echo", "echo"], params, use_tqdm=False)
    assert params == before


def test_one_refused_prompt_raises_its_error_and_aborts_the_others(llm: LLM, server: ScriptedServer) -> None:
    with pytest.raises(InvalidArgument) as caught:
        llm.generate(["refuse", "slow"], FIVE, use_tqdm=False)
    assert caught.value.reason == "SCRIPTED"
    assert caught.value.metadata["field"] == "prompt"
    deadline = time.monotonic() + 5
    while not server.inference.cancelled and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(server.inference.cancelled) == 1


@pytest.mark.parametrize("prompt", [3, None, b"bytes"])
def test_what_is_no_prompt_is_a_type_error(llm: LLM, prompt: object) -> None:
    with pytest.raises(TypeError, match="a prompt must be"):
        llm.generate_async(prompt)  # type: ignore[arg-type]


def test_a_chat_travels_as_messages(llm: LLM, server: ScriptedServer) -> None:
    llm.generate({"messages": [{"role": "user", "content": "echo"}], "add_generation_prompt": False}, use_tqdm=False)
    chat = server.inference.starts[0].chat
    assert (chat.messages[0].role, chat.messages[0].content, chat.add_generation_prompt) == ("user", "echo", False)


async def test_streamed_diffs_add_up_to_the_whole(llm: LLM) -> None:
    output = llm.generate_async("echo", SamplingParams(max_tokens=20, logprobs=0), streaming=True)
    text, ids, logprobs = "", [], []
    async for step in output:
        assert step is output
        text += step.outputs[0].text_diff
        ids += step.outputs[0].token_ids_diff
        logprobs += step.outputs[0].logprobs_diff
        assert step.outputs[0].text == text
    assert text == "".join(f" t{i}" for i in range(20))
    assert ids == list(range(100, 120))
    assert [list(row) for row in logprobs] == [[token] for token in ids]
    assert output.finished


async def test_an_output_can_be_awaited(llm: LLM) -> None:
    output = await llm.generate_async("echo", FIVE)
    assert output.outputs[0].text == TEXT
    assert (await output.aresult()) is output


async def test_many_async_requests_on_one_loop(llm: LLM) -> None:
    outputs = await asyncio.gather(*(llm.generate_async("echo", FIVE).aresult() for _ in range(100)))
    assert {output.outputs[0].text for output in outputs} == {TEXT}


def test_sync_iteration(llm: LLM) -> None:
    steps = [step.outputs[0].text_diff for step in llm.generate_async("echo", FIVE, streaming=True)]
    assert "".join(steps) == TEXT


def test_without_streaming_an_iteration_has_one_step(llm: LLM) -> None:
    steps = [step.outputs[0].text for step in llm.generate_async("echo", FIVE)]
    assert steps == [TEXT]


def test_several_outputs_of_one_request(llm: LLM) -> None:
    output = llm.generate_async("echo", SamplingParams(n=3, max_tokens=2), streaming=True).result()
    assert [item.index for item in output.outputs] == [0, 1, 2]
    assert [item.text for item in output.outputs] == [" t0 t1"] * 3


def test_several_threads_and_loops_share_one_client(llm: LLM, server: ScriptedServer) -> None:
    texts: list[str] = []

    def sync() -> None:
        texts.extend(output.outputs[0].text for output in llm.generate(["echo"] * 10, FIVE, use_tqdm=False))

    def run_async() -> None:
        async def main() -> None:
            texts.extend([(await llm.generate_async("echo", FIVE, streaming=True)).outputs[0].text for _ in range(10)])

        asyncio.run(main())

    threads = [threading.Thread(target=target) for target in (sync, run_async) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [TEXT] * 80
    assert server.inference.streams == 1


def test_several_threads_wait_for_one_request(llm: LLM) -> None:
    for _ in range(20):
        output = llm.generate_async("echo", SamplingParams(max_tokens=20), streaming=True)
        with ThreadPoolExecutor(4) as pool:
            waits = [pool.submit(output.result, 10) for _ in range(4)]
        assert [wait.result().outputs[0].length for wait in waits] == [20] * 4


def test_the_timeout_is_a_total_budget(llm: LLM) -> None:
    output = llm.generate_async("slow", FIVE, streaming=True)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"did not end in 0\.3 s"):
        output.result(timeout=0.3)
    assert 0.25 < time.monotonic() - began < 2
    assert output.outputs[0].length > 0
    output.abort()


def test_abort_ends_a_request_as_cancelled(llm: LLM) -> None:
    output = llm.generate_async("slow", FIVE)
    output.abort()
    assert output.result(5).outputs[0].finish_reason == "cancelled"
    output.abort()  # of one that has ended: nothing happens


def test_a_polled_output_is_brought_up_to_date(llm: LLM) -> None:
    output = llm.generate_async("echo", FIVE)
    deadline = time.monotonic() + 5
    while not output.finished and time.monotonic() < deadline:
        time.sleep(0.01)
    assert output.outputs[0].text == TEXT


async def test_a_cancelled_wait_leaves_the_request_running(llm: LLM) -> None:
    output = llm.generate_async("slow", FIVE)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(output.aresult(), 0.1)
    assert not output.finished
    output.abort()
    assert (await output).outputs[0].finish_reason == "cancelled"


def test_a_request_that_was_not_accepted_is_tried_again(llm: LLM, server: ScriptedServer) -> None:
    assert llm.generate("break early", FIVE, use_tqdm=False).outputs[0].text == TEXT
    assert server.inference.streams == 2


def test_a_start_refused_as_unavailable_is_tried_again(llm: LLM, server: ScriptedServer) -> None:
    assert llm.generate("busy once", FIVE, use_tqdm=False).outputs[0].text == TEXT


def test_generate_waits_while_the_queue_is_full(llm: LLM, server: ScriptedServer) -> None:
    server.inference.breaks_left = 7
    outputs = llm.generate(["full"] * 3, FIVE, use_tqdm=False)
    assert [output.outputs[0].text for output in outputs] == [TEXT] * 3
    assert len(server.inference.starts) == 10


def test_generate_async_tells_of_a_full_queue(llm: LLM, server: ScriptedServer) -> None:
    with pytest.raises(ResourceExhausted) as caught:
        llm.generate_async("full", FIVE).result(5)
    assert caught.value.retry_after == 0.01


def test_a_long_list_is_sent_in_a_window(llm: LLM, server: ScriptedServer) -> None:
    outputs = llm.generate(["echo"] * 1500, SamplingParams(max_tokens=40), use_tqdm=False)
    assert len(outputs) == 1500
    assert [output.outputs[0].length for output in outputs] == [40] * 1500
    assert 1 < server.inference.most_live <= 512


def test_it_is_tried_only_twice(llm: LLM, server: ScriptedServer) -> None:
    server.inference.breaks_left = 5
    with pytest.raises(Unavailable):
        llm.generate("break early", FIVE, use_tqdm=False)
    assert server.inference.streams == 2


def test_an_accepted_request_is_not_repeated(llm: LLM, server: ScriptedServer) -> None:
    with pytest.raises(Unavailable):
        llm.generate("break late", FIVE, use_tqdm=False)
    assert len(server.inference.starts) == 1
    assert llm.generate("echo", FIVE, use_tqdm=False).outputs[0].text == TEXT  # on a new stream


def test_after_draining_new_requests_go_to_a_new_stream(llm: LLM, server: ScriptedServer) -> None:
    slow = llm.generate_async("slow", FIVE, streaming=True)
    assert llm.generate("drain", FIVE, use_tqdm=False).outputs[0].text == TEXT
    assert llm.generate("echo", FIVE, use_tqdm=False).outputs[0].text == TEXT
    assert server.inference.streams == 2
    slow.abort()  # it still lives on the old stream
    assert slow.result(5).outputs[0].finish_reason == "cancelled"


def test_shutdown_fails_what_lives_and_is_idempotent(server: ScriptedServer) -> None:
    llm = LLM("tiny", target=server.target)
    output = llm.generate_async("slow", FIVE)
    time.sleep(0.1)
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(Cancelled):
        output.result(5)
    with pytest.raises(Cancelled, match="make a new LLM"):
        llm.generate("echo")
    deadline = time.monotonic() + 5
    while not server.inference.dropped and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.inference.dropped == 1


def test_a_collected_client_ends_its_thread(server: ScriptedServer) -> None:
    before = threading.active_count()
    llm = LLM("tiny", target=server.target)
    llm.generate("echo", FIVE, use_tqdm=False)
    del llm
    gc.collect()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [thread for thread in threading.enumerate() if thread.name == "enginehouse-client"]


def test_an_output_keeps_its_client_alive(server: ScriptedServer) -> None:
    output = LLM("tiny", target=server.target).generate_async("echo", FIVE)
    gc.collect()
    assert output.result(5).outputs[0].text == TEXT


def test_a_script_that_never_shuts_down_exits_cleanly(server: ScriptedServer) -> None:
    script = (
        "from enginehouse import LLM\n"
        f"llm = LLM('tiny', target='{server.target}')\n"
        "slow = llm.generate_async('slow')\n"
        "print(llm.generate('echo', use_tqdm=False).outputs[0].length)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "32\n", "")


def test_nothing_listens(unused_tcp_port: int) -> None:
    with pytest.raises(Unavailable, match=r"No Enginehouse daemon answers at .*`enginehouse inference`"):
        LLM("tiny", target=f"127.0.0.1:{unused_tcp_port}")


def test_a_lost_connection_fails_what_ran_and_is_made_again() -> None:
    first = ScriptedServer()
    with LLM("tiny", target=first.target) as llm:
        output = llm.generate_async("slow", FIVE, streaming=True)
        next(output)
        first.stop()
        with pytest.raises(Unavailable, match="was lost") as caught:
            output.result(10)
        assert caught.value.reason == "CONNECTION_LOST"
        assert output.outputs[0].length > 0  # what had come stays
        second = ScriptedServer(first.port)
        assert llm.generate("echo", FIVE, use_tqdm=False).outputs[0].text == TEXT
        second.stop()


def test_what_is_no_grpc_server_is_told_apart() -> None:
    page = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=page.serve_forever, daemon=True)
    thread.start()
    with pytest.raises(Unavailable, match="is no gRPC server: check the port"):
        LLM("tiny", target=f"127.0.0.1:{page.server_port}")
    page.shutdown()
    page.server_close()
    thread.join()


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(Unavailable, match=r"There is no host of nowhere\.invalid:1"):
        LLM("tiny", target="nowhere.invalid:1")


def test_an_unknown_model_names_what_is_served(server: ScriptedServer) -> None:
    with pytest.raises(NotFound, match=r"served: tiny.*enginehouse models load"):
        LLM("other", target=server.target)


def test_the_token_travels_with_each_call(server: ScriptedServer) -> None:
    with LLM("tiny", target=server.target, token="secret") as llm:
        llm.generate("echo", FIVE, use_tqdm=False)
    assert server.inference.metadata[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"max_batchsize": 3}, r"invalid argument: max_batchsize \(did you mean max_batch_size\?\)"),
        ({"trust_remote_code": True}, "never run"),
        ({"backend": "pytorch"}, "backend"),
        ({"max_batch_size": 3}, "max_batch_size: only with builder="),
        ({"tokenizer_mode": "fast"}, "tokenizer_mode must be one of"),
        ({"target": "http://host"}, "HOST:PORT"),
        ({"max_num_tokens": "many"}, "max_num_tokens must be an int"),
    ],
)
def test_arguments_that_cannot_be_honoured(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM("tiny", **keywords)  # type: ignore[arg-type]


def test_it_cannot_be_pickled(llm: LLM) -> None:
    with pytest.raises(RuntimeError, match="cannot be pickled"):
        pickle.dumps(llm)
    with pytest.raises(RuntimeError, match="not directly"):
        RequestOutput()


def test_skip_tokenizer_init_takes_and_gives_ids(server: ScriptedServer) -> None:
    with LLM("tiny", target=server.target, skip_tokenizer_init=True) as llm:
        assert llm.tokenizer is None
        with pytest.raises(ValueError, match="must be token ids"):
            llm.generate("echo")
        llm.generate([1], FIVE, use_tqdm=False)
    assert server.inference.starts[0].output.detokenize is False


class Bytes:
    """A tokenizer of one's own."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return ([1] if add_special_tokens else []) + list(text.encode())


def test_a_tokenizer_of_ones_own_encodes_prompts(llm: LLM, server: ScriptedServer) -> None:
    llm.tokenizer = Bytes()
    output = llm.generate("ab", SamplingParams(add_special_tokens=False), use_tqdm=False)
    assert list(server.inference.starts[0].token_ids.ids) == [97, 98]
    assert (output.prompt, output.prompt_token_ids) == ("ab", [97, 98])


def test_stats_come_once_under_the_known_names(llm: LLM) -> None:
    stats = llm.get_stats()
    assert [(item["iter"], item["numActiveRequests"], item["iterLatencyMS"]) for item in stats] == [
        (1, 2, 12.0),
        (2, 2, 12.0),
    ]
    assert stats[0]["kvCacheStats"]["maxNumBlocks"] == 64
    assert llm.get_stats() == []


async def test_stats_can_be_iterated(llm: LLM) -> None:
    assert [item["iter"] async for item in llm.get_stats_async(0)] == [1, 2]


def test_cache_events_are_told_once(llm: LLM) -> None:
    events = llm.get_kv_cache_events(0.3)
    assert [event["eventId"] for event in events] == [0, 1]
    assert events[1]["stored"]["blocks"][0] == {
        "blockHash": "ab",
        "tokenIds": [1, 2],
        "tokenExtraIds": [],
        "loraName": "",
        "cacheLevel": 0,
        "priority": 35,
    }
    assert llm.get_kv_cache_events(0.1) == []


def test_llm_id_is_stable(llm: LLM) -> None:
    assert llm.llm_id == llm.llm_id
    assert llm.llm_id.count("-") >= 2


@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        ("half of a pair: \ud83d!", FIVE),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, FIVE),
        ("echo", SamplingParams(max_tokens=5, stop="\udc00")),
    ],
)
def test_half_of_a_surrogate_pair_is_an_invalid_argument(llm: LLM, prompt: object, params: SamplingParams) -> None:
    with pytest.raises(InvalidArgument, match="half of a surrogate pair") as caught:
        llm.generate(prompt, params, use_tqdm=False)
    assert caught.value.reason == "INVALID_TEXT"
    assert llm.generate("echo", FIVE, use_tqdm=False).outputs[0].text == TEXT
