"""In float32 the served tokens are transformers' greedy tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.builder_service.models.checkpoints import CASES

from .engines import Engine, Served, random_prompts


def teacher_forced(model: Any, prompt: list[int], output: list[int]) -> list[int]:
    """transformers' argmax after the prompt and after each token of `output` but the last. Equal to `output` exactly
    when `output` is the greedy continuation (by induction over its tokens)."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + output[:-1]])).logits[0]
    return [int(token) for token in logits[len(prompt) - 1 :].argmax(-1)]


def generated(model: Any, prompt: list[int], output: list[int]) -> list[int]:
    """transformers' own `generate`, greedy, for as many tokens as `output` has."""
    ids, count = torch.tensor([prompt]), len(output)
    options = {"do_sample": False, "max_new_tokens": count, "min_new_tokens": count, "eos_token_id": -1}
    with torch.no_grad():
        tokens = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    return [int(token) for token in tokens[0, len(prompt) :]]


@pytest.mark.parametrize("case", CASES)
def test_32_prompts_of_a_tiny_model_continue_as_transformers_does(
    case: str, tiny: Callable[[str], tuple[Engine, Any]], serve: Callable[..., Served]
) -> None:
    engine, model = tiny(case)
    prompts = random_prompts(97, [1 + i % 30 for i in range(32)])
    outputs = serve(engine).generate(prompts, 64)
    assert all(len(output) == 64 for output in outputs)
    # dynamic rope rotates a token by the length at its time, so only generation token by token is a reference
    reference = generated if "dynamic" in case else teacher_forced
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output == reference(model, prompt, output)


QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain gravity to a child.",
    "List three uses of copper.",
)


def text_prompts(model: Any, count: int) -> list[list[int]]:
    """Prompts of text, each continued from the last: real tokens, varied lengths."""
    from transformers import AutoTokenizer

    from .engines import smollm2_gguf

    gguf = smollm2_gguf()
    assert gguf is not None
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    texts = [f"{QUESTIONS[i % 4]} " * (1 + i % 5) + f"Answer number {i}:" for i in range(count)]
    return [tokenizer.encode(text) for text in texts]


@pytest.mark.timeout(400)
def test_32_prompts_of_smollm2_continue_as_transformers_does(
    smollm2: Engine, smollm2_reference: Any, serve: Callable[..., Served]
) -> None:
    prompts = text_prompts(smollm2_reference, 32)
    outputs = serve(smollm2).generate(prompts, 64)
    assert all(len(output) == 64 for output in outputs)
    wrong = [
        index
        for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        if output != teacher_forced(smollm2_reference, prompt, output)
    ]
    assert not wrong, f"prompts {wrong} differ"


@pytest.mark.long
def test_smollm2_equals_transformers_generate_itself(
    smollm2: Engine, smollm2_reference: Any, serve: Callable[..., Served]
) -> None:
    prompts = text_prompts(smollm2_reference, 32)
    outputs = serve(smollm2).generate(prompts, 64)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output == generated(smollm2_reference, prompt, output)
