"""VERIFYING: does the engine compute what transformers computes on the same checkpoint?

The engine generates greedily from a few prompts; then transformers scores the same tokens in one pass. Gates:

    float32            the generated tokens are the reference's argmax, and logits agree to 1e-3 of their scale
    bfloat16, float16  max |logit difference from float32| <= 1.5 x the one that transformers has in that dtype
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from builder_service.build.tokenizer_files import has_tokenizer
from builder_service.sources.base import Checkpoint
from builder_service.verify.engine import Generated, generate
from builder_service.verify.reference import reference_logits
from engine_ops.graph import Graph
from engine_store.manifest import VerifyReport
from enginehouse.errors import FailedPrecondition

NEW_TOKENS = 16
PROMPT_LENGTHS = (40, 17, 5, 31)
TEXT = "The capital of France is Paris, and the capital of Italy is"
FLOAT32_TOLERANCE = 1e-3
HALF_FACTOR = 1.5

Progress = Callable[[int, int], None]


class Staged(NamedTuple):
    """The engine before it is published. `tokenizer` is its tokenizer directory; lengths in tokens."""

    graph: Graph
    weights: Path
    tokenizer: Path
    dtype: str
    max_seq_len: int
    vocab_size: int


class Measured(NamedTuple):
    """What was found. `largest`: of the absolute logit differences; `limit`: the gate."""

    largest: float
    limit: float
    equal_tokens: int
    all_tokens: int


def verify(engine: Staged, checkpoint: Checkpoint, progress: Progress) -> VerifyReport:
    """Runs the gate of the engine's dtype.

    Raises:
        FailedPrecondition: the engine differs more than the gate allows; the message has the numbers.
    """
    prompts = make_prompts(engine)
    steps = _Steps(progress, 2 if engine.dtype == "float32" else 3)
    generated = generate(engine.graph, engine.weights, prompts, new_tokens(engine.max_seq_len), steps.part(0))
    scored = [item.tokens[:-1] for item in generated]
    exact = reference_logits(checkpoint, scored, "float32", steps.part(1))
    if engine.dtype == "float32":
        scale = max(float(logits.abs().max()) for logits in exact)
        limit = FLOAT32_TOLERANCE * max(scale, 1.0)
    else:
        half = reference_logits(checkpoint, scored, engine.dtype, steps.part(2))
        limit = HALF_FACTOR * max(_difference(a, b) for a, b in zip(half, exact, strict=True))
    measured = measure(generated, exact, limit)
    check(measured, engine.dtype)
    return _report(engine.dtype, len(prompts), measured)


def new_tokens(max_seq_len: int) -> int:
    """How many tokens are generated for a prompt."""
    return min(NEW_TOKENS, max(1, max_seq_len // 2))


def make_prompts(engine: Staged) -> list[list[int]]:
    """Fixed ids spread over the vocabulary, and a text where the engine has a tokenizer; all fit the engine."""
    room = max(1, engine.max_seq_len - new_tokens(engine.max_seq_len))
    prompts = [
        [(7919 * (position + 1) * (index + 1) + 104729 * index) % engine.vocab_size for position in range(length)]
        for index, length in enumerate(PROMPT_LENGTHS)
    ]
    if has_tokenizer(engine.tokenizer):
        prompts[-1] = _encode(engine) or prompts[-1]
    return [prompt[:room] for prompt in prompts]


def _encode(engine: Staged) -> list[int]:
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(engine.tokenizer / "tokenizer.json")).encode(TEXT).ids
    return [index for index in ids if index < engine.vocab_size]


def measure(generated: Sequence[Generated], exact: Sequence[Tensor], limit: float) -> Measured:
    """Compares the engine's logits and tokens with the reference's."""
    largest, equal, total = 0.0, 0, 0
    for item, logits in zip(generated, exact, strict=True):
        largest = max(largest, _difference(item.logits, logits))
        chosen = torch.tensor(item.tokens[item.prompt_length :])
        equal += int((logits[item.prompt_length - 1 :].argmax(-1) == chosen).sum())
        total += len(chosen)
    return Measured(largest, limit, equal, total)


def check(measured: Measured, dtype: str) -> None:
    """Raises FailedPrecondition (VERIFY_FAILED) when the gate is not met."""
    tokens_differ = dtype == "float32" and measured.equal_tokens < measured.all_tokens
    if measured.largest <= measured.limit and not tokens_differ:  # a NaN fails too
        return
    message = (
        f"The engine does not compute what transformers computes on this checkpoint: max |logit difference| "
        f"{measured.largest:.3g} (limit {measured.limit:.3g}), greedy tokens equal {measured.equal_tokens} of "
        f"{measured.all_tokens} in {dtype}. Nothing was published; please report the checkpoint."
    )
    metadata = {
        "dtype": dtype,
        "max_logit_diff": measured.largest,
        "tolerance": measured.limit,
        "greedy_equal": measured.equal_tokens,
        "tokens": measured.all_tokens,
    }
    raise FailedPrecondition(message, reason="VERIFY_FAILED", metadata=metadata)


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _report(dtype: str, prompts: int, measured: Measured) -> VerifyReport:
    import transformers

    return VerifyReport(
        status="passed",
        dtype=dtype,
        prompts=prompts,
        tokens=measured.all_tokens,
        greedy_equal=measured.equal_tokens,
        max_logit_diff=measured.largest,
        tolerance=measured.limit,
        reference=f"transformers {transformers.__version__}, float32, layer by layer",
    )


class _Steps:
    """Progress over parts of unknown lengths: each part is 1000 of the whole."""

    def __init__(self, progress: Progress, parts: int) -> None:
        self._progress, self._parts = progress, parts

    def part(self, index: int) -> Progress:
        return lambda done, total: self._progress(1000 * index + 1000 * done // total, 1000 * self._parts)
