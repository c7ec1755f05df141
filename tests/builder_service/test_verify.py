from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from builder_service.job import SourceSpec
from builder_service.sources import open_checkpoint
from builder_service.verify import HALF_FACTOR, Measured, Staged, check, make_prompts, new_tokens
from builder_service.verify.precision import Float32Accumulate
from builder_service.verify.reference import reference_logits
from enginehouse.errors import FailedPrecondition, InvalidArgument

SEQUENCES = [list(range(3, 43)), [5], [99, 0, 7]]
OPTIONS = {
    "llama": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    "mistral": {"sliding_window": 7},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"attention_bias": True},
}


def open_directory(path):
    return open_checkpoint(SourceSpec(kind="huggingface", path=str(path)), path.parent / "cache")


@pytest.mark.parametrize("family", OPTIONS)
def test_the_streamed_reference_is_transformers(make_checkpoint, family):
    directory = make_checkpoint(family, **OPTIONS[family])
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    got = reference_logits(open_directory(directory), SEQUENCES, "float32", lambda *_: None)
    for sequence, logits in zip(SEQUENCES, got, strict=True):
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([sequence])).logits[0]
        assert logits.shape == expected.shape
        assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_config_that_transformers_refuses_is_named_without_its_inside(make_checkpoint, edit):
    directory = make_checkpoint()
    edit(directory / "config.json", lambda config: config.update(attention_dropout="x"))
    with pytest.raises(InvalidArgument, match="attention_dropout") as caught:
        reference_logits(open_directory(directory), SEQUENCES, "float32", lambda *_: None)
    assert caught.value.reason == "INVALID_MODEL_CONFIG"
    assert "TypeError" not in caught.value.message


def test_the_reference_reads_each_tensor_once_and_keeps_none(make_checkpoint):
    checkpoint = open_directory(make_checkpoint())
    read: list[str] = []
    tensor = checkpoint.tensor
    checkpoint.tensor = lambda name: (read.append(name), tensor(name))[1]
    steps: list[tuple[int, int]] = []
    reference_logits(checkpoint, SEQUENCES, "float32", lambda *step: steps.append(step))
    assert sorted(read) == sorted(checkpoint.names())
    assert steps == [(done, 6) for done in range(1, 7)], "embedding, three layers, norm, head"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 40])
def test_widened_products_are_rounded_once(monkeypatch, dtype, rows):
    monkeypatch.setattr("builder_service.verify.precision.BLOCK_ELEMENTS", 64 * 10)
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((rows, 64), (33, 64), (33,)))
    exact = x.double() @ weight.double().T + bias.double()
    with Float32Accumulate():
        y = torch.nn.functional.linear(x, weight, bias)
    assert y.dtype == dtype
    assert torch.allclose(y.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-3)


def staged(tmp_path, max_seq_len, vocab_size=101):
    return Staged(None, tmp_path / "w", tmp_path, "float32", max_seq_len, vocab_size)


@pytest.mark.parametrize("max_seq_len", [2, 3, 17, 40, 4096])
@pytest.mark.parametrize("vocab_size", [2, 101, 50000])
def test_prompts_fit_the_engine(tmp_path, max_seq_len, vocab_size):
    prompts = make_prompts(staged(tmp_path, max_seq_len, vocab_size))
    for prompt in prompts:
        assert 1 <= len(prompt) <= max_seq_len - new_tokens(max_seq_len)
        assert all(0 <= token < vocab_size for token in prompt)
    assert make_prompts(staged(tmp_path, max_seq_len, vocab_size)) == prompts


@pytest.mark.parametrize(
    ("measured", "dtype", "passes"),
    [
        (Measured(1e-5, 1e-3, 64, 64), "float32", True),
        (Measured(1e-5, 1e-3, 63, 64), "float32", False),
        (Measured(1e-2, 1e-3, 64, 64), "float32", False),
        (Measured(float("nan"), 1e-3, 64, 64), "float32", False),
        (Measured(0.4, 0.4, 10, 64), "bfloat16", True),
        (Measured(0.41, 0.4, 64, 64), "bfloat16", False),
        (Measured(float("nan"), 0.4, 64, 64), "bfloat16", False),
    ],
)
def test_the_gates(measured, dtype, passes):
    if passes:
        check(measured, dtype)
        return
    with pytest.raises(FailedPrecondition) as caught:
        check(measured, dtype)
    assert caught.value.reason == "VERIFY_FAILED"
    assert caught.value.metadata["greedy_equal"] == str(measured.equal_tokens)


def test_the_half_precision_factor_is_the_documented_one():
    assert HALF_FACTOR == 1.5
