"""The client against both real daemons: a checkpoint goes in, a stream comes out."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from enginehouse import (
    LLM,
    BuilderClient,
    InvalidArgument,
    ModelClient,
    NotFound,
    RemoteTokenizer,
    SamplingParams,
    Unimplemented,
)
from tests.examples.conftest import Daemons

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ["hello", "the quick brown fox", "a", "1+1="]
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)

pytestmark = pytest.mark.timeout(240)


def reference(model: Any, prompt: list[int], count: int) -> list[int]:
    """transformers' greedy continuation."""
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": count, "min_new_tokens": count, "eos_token_id": -1}
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    return [int(token) for token in out[0, len(prompt) :]]


def test_a_checkpoint_is_built_loaded_and_generates_as_transformers_does(llm: LLM, daemons: Daemons) -> None:
    assert llm.model.engine_version == "engines/tiny-llama/versions/1"
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.prompt == prompt
        assert output.prompt_token_ids == llm.tokenizer.encode(prompt)
        assert output.outputs[0].token_ids == reference(daemons.model, output.prompt_token_ids, 12)
        assert output.outputs[0].finish_reason == "length"


def test_the_second_time_the_engine_is_found(llm: LLM, daemons: Daemons) -> None:
    with LLM(daemons.checkpoint, target=daemons.inference, builder=daemons.builder, dtype="float32") as again:
        assert again.model.engine_version == llm.model.engine_version
    with BuilderClient(daemons.builder) as client:
        assert [version.number for version in client.versions("tiny-llama")] == [1]
        assert next(client.builds()).status().reused


async def test_streams_equal_the_whole(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=2)

    async def stream(prompt: str) -> tuple[str, list[int], int]:
        text, ids, logprobs = "", [], 0
        async for step in llm.generate_async(prompt, params, streaming=True):
            text += step.outputs[0].text_diff
            ids += step.outputs[0].token_ids_diff
            logprobs += len(step.outputs[0].logprobs_diff)
        return text, ids, logprobs

    streamed = await asyncio.gather(*map(stream, PROMPTS))
    whole = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [(text, ids) for text, ids, _ in streamed] == [
        (output.outputs[0].text, output.outputs[0].token_ids) for output in whole
    ]
    assert [count for _, _, count in streamed] == [12] * 4
    first = whole[0].outputs[0].logprobs[0]
    assert next(iter(first)) == whole[0].outputs[0].token_ids[0]
    assert all(item.logprob <= 0 for item in first.values())


def test_ids_in_and_stops(llm: LLM) -> None:
    ids = llm.tokenizer.encode("hello")
    whole = llm.generate(ids, GREEDY, use_tqdm=False).outputs[0]
    stopped = llm.generate(
        ids, SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=[whole.token_ids[3]]), use_tqdm=False
    ).outputs[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", whole.token_ids[3])
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]


def test_abort_frees_the_request(llm: LLM) -> None:
    output = llm.generate_async("hello", SamplingParams(max_tokens=100, ignore_eos=True), streaming=True)
    next(output)
    output.abort()
    assert output.result(20).outputs[0].finish_reason in ("cancelled", "length")


def test_metrics_and_stats(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, ignore_eos=True, return_perf_metrics=True)
    metrics = llm.generate("hello", params, use_tqdm=False).outputs[0].request_perf_metrics
    assert metrics is not None
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.last_token_time
    assert llm.get_stats()[-1]["iter"] > 0


def test_refusals_name_the_field(llm: LLM) -> None:
    with pytest.raises(Unimplemented) as caught:
        llm.generate("hello", SamplingParams(repetition_penalty=1.5), use_tqdm=False)
    assert "repetition_penalty" in caught.value.metadata["field"]
    with pytest.raises(InvalidArgument):
        llm.generate([100000], use_tqdm=False)
    assert llm.generate("hello", GREEDY, use_tqdm=False).finished


def test_both_tokenizers_agree(llm: LLM) -> None:
    local = llm.tokenizer
    assert isinstance(local, transformers.PreTrainedTokenizerBase)
    remote = RemoteTokenizer(llm._models._calls, llm.model)
    ids = local.encode("hello fox")
    assert remote.encode("hello fox") == ids
    assert remote.decode(ids) == local.decode(ids)
    assert remote.eos_token_id == local.eos_token_id
    messages = [{"role": "user", "content": "hi"}]
    assert remote.apply_chat_template(messages, tokenize=False) == local.apply_chat_template(messages, tokenize=False)


def test_save_copies_the_engine(llm: LLM, tmp_path: Path) -> None:
    llm.save(tmp_path)
    assert json.loads((tmp_path / "engine.json").read_text())["version"] == 1
    assert (tmp_path / "weights" / "rank0.safetensors").stat().st_size > 0
    assert (tmp_path / "tokenizer" / "tokenizer.json").exists()


def test_models_load_and_unload(llm: LLM, daemons: Daemons) -> None:
    with ModelClient(daemons.inference) as client:
        model = client.load("tiny-llama@1", model="second", max_batch_size=2, timeout=120)
        assert (model.name, model.state) == ("second", "ready")
        with LLM("second", target=daemons.inference) as second:
            assert second.generate("hello", GREEDY, use_tqdm=False).outputs[0].length == 12
        client.unload("second", timeout=60)
        with pytest.raises(NotFound):
            client.model("second")


def test_a_checkpoint_outside_the_roots_names_them(daemons: Daemons, tmp_path: Path) -> None:
    with BuilderClient(daemons.builder) as client, pytest.raises(Exception, match=str(daemons.checkpoint.parent)):
        client.build(tmp_path, "outside").result(30)


def test_the_quickstart_runs(llm: LLM, daemons: Daemons) -> None:
    command = [sys.executable, str(ROOT / "examples" / "quickstart.py"), str(daemons.checkpoint)]
    options = ["--target", daemons.inference, "--builder", daemons.builder]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "'The capital of France is' ->" in done.stdout
    assert "[cold]" in done.stdout


def test_the_command_line_goes_all_the_way(llm: LLM, daemons: Daemons) -> None:
    def enginehouse(*arguments: str) -> Any:
        command = [sys.executable, "-m", "enginehouse", *arguments, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    at, target = ("--builder", daemons.builder), ("--target", daemons.inference)
    built = enginehouse("build", str(daemons.checkpoint), "--engine", "tiny-llama", "--dtype", "float32", *at)
    assert (built["reused"], built["version"]["name"]) == (True, llm.model.engine_version)
    assert enginehouse("engines", "verify", "tiny-llama", *at)["intact"]
    loaded = enginehouse("models", "load", "tiny-llama", "--name", "by-hand", *target)
    assert loaded["state"] == "ready"
    answer = enginehouse("generate", "hello", "--model", "by-hand", "--max-tokens", "12", "--ignore-eos", *target)
    assert answer["token_ids"] == llm.generate("hello", GREEDY, use_tqdm=False).outputs[0].token_ids
