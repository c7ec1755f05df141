"""The engine under test: its graph and weights file run by the operators' definitions, through the paged cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from builder_service.verify.precision import Float32Accumulate
from engine_ops.contract import Chunk, make_pools, step_inputs
from engine_ops.graph import Graph
from engine_ops.reference import REFERENCES, Outputs
from engine_ops.run import run_graph


class Generated(NamedTuple):
    """Greedy generation for one prompt. `logits`: float32, one row for each of `tokens` but the last."""

    tokens: tuple[int, ...]
    prompt_length: int
    logits: Tensor


def generate(
    graph: Graph, weights: Path, prompts: Sequence[Sequence[int]], new_tokens: int, on_step: Callable[[int, int], None]
) -> list[Generated]:
    """Generates greedily for all prompts in one batch: one step over the prompts, then one token a step.

    Args:
        weights: the staged safetensors file; it is mapped, not copied.
        prompts: token ids.
        new_tokens: tokens to generate for each prompt; the last is never run.
        on_step: called with (operators done, operators in all).
    """
    size = next(iter(graph.pools.values())).tensor.shape[2]
    assert isinstance(size, int)
    sequences = [list(prompt) for prompt in prompts]
    per_sequence = max(-(-(len(prompt) + new_tokens) // size) for prompt in prompts)
    # Blocks of the sequences alternate, so that no table is a plain range.
    blocks = [list(range(1 + n, 1 + len(prompts) * per_sequence, len(prompts))) for n in range(len(prompts))]
    pools = make_pools(graph, 1 + len(prompts) * per_sequence)
    rows: list[list[Tensor]] = [[] for _ in prompts]
    starts = [0] * len(prompts)
    operators = _counted(on_step, new_tokens * len(graph.nodes))
    with safe_open(weights, framework="pt") as file, Float32Accumulate():
        tensors = {name: file.get_tensor(name) for name in graph.weights}
        for _ in range(new_tokens):
            chunks = [Chunk(s[start:], start, b) for s, start, b in zip(sequences, starts, blocks, strict=True)]
            logits = run_graph(graph, tensors, step_inputs(chunks), pools, operators)["logits"]
            pieces = torch.split(logits, [len(chunk.token_ids) for chunk in chunks])
            for index, piece in enumerate(pieces):
                rows[index].append(piece)
                starts[index] = len(sequences[index])
                sequences[index].append(int(piece[-1].argmax()))
    return [
        Generated(tuple(sequence), len(prompt), torch.cat(row))
        for sequence, prompt, row in zip(sequences, prompts, rows, strict=True)
    ]


def _counted(on_step: Callable[[int, int], None], total: int) -> dict[str, Callable[..., Outputs]]:
    """The operators, each of which reports when it is done."""
    done = 0

    def counted(operator: Callable[..., Outputs]) -> Callable[..., Outputs]:
        def run(*arguments: object) -> Outputs:
            nonlocal done
            outputs = operator(*arguments)
            done += 1
            on_step(done, total)
            return outputs

        return run

    return {name: counted(operator) for name, operator in REFERENCES.items()}
