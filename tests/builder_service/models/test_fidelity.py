"""The captured graph, run by the reference interpreter, gives transformers' logits."""

from __future__ import annotations

import pytest
import torch

from builder_service.build.capture import capture
from engine_ops.contract import Chunk, make_pools, step_inputs
from engine_ops.run import run_graph

from .checkpoints import CASES, ROPES, canonical, make_model, spec_of

BLOCK = 4
LENGTHS = (23, 14)
BLOCKS = ((3, 1, 9, 4, 6, 2), (5, 12, 7, 11))


@pytest.mark.parametrize("case", CASES)
def test_prefill_chunks_and_decode_steps_equal_transformers(case: str) -> None:
    model = make_model(case)
    spec = spec_of(model)
    graph, weights = capture(spec, "float32", BLOCK), canonical(spec, model.state_dict())
    tokens = [torch.randint(0, spec.vocab_size, (length,)) for length in LENGTHS]
    pools = make_pools(graph, 13)
    got: list[list[torch.Tensor]] = [[], []]
    # sequence 0: prefill of 9, chunk of 7, then single tokens; sequence 1 joins at the second step
    for spans in [((0, 9), None), ((9, 16), (0, 4)), ((16, 17), (4, 10))] + [
        ((17 + i, 18 + i), (10 + i, 11 + i) if i < 4 else None) for i in range(6)
    ]:
        live = [(s, span) for s, span in enumerate(spans) if span]
        chunks = [Chunk(tokens[s][a:b].tolist(), a, BLOCKS[s]) for s, (a, b) in live]
        logits = run_graph(graph, weights, step_inputs(chunks), pools)["logits"]
        for (s, _), part in zip(live, logits.split([len(c.token_ids) for c in chunks]), strict=True):
            got[s].append(part)
    for sequence in range(2):
        with torch.no_grad():
            expected = model(tokens[sequence][None]).logits[0]
        actual = torch.cat(got[sequence])
        assert actual.dtype == torch.float32
        assert (actual - expected).abs().max() <= 1e-4, f"|logit| {expected.abs().max()}"


@pytest.mark.parametrize("kind", ROPES)
def test_every_position_up_to_the_longest_equals_transformers(kind: str) -> None:
    model = make_model(f"llama-{kind}")
    spec = spec_of(model)
    graph, weights = capture(spec, "float32", BLOCK), canonical(spec, model.state_dict())
    length = model.config.max_position_embeddings
    tokens = torch.randint(0, spec.vocab_size, (length,))
    step = step_inputs([Chunk(tokens.tolist(), 0, range(1, 1 + length // BLOCK))])
    actual = run_graph(graph, weights, step, make_pools(graph, 1 + length // BLOCK))["logits"]
    with torch.no_grad():
        assert (actual - model(tokens[None]).logits[0]).abs().max() <= 1e-4


def test_dynamic_rope_beyond_its_length_equals_token_by_token_transformers() -> None:
    model = make_model("llama-dynamic")
    spec = spec_of(model)
    graph, weights = capture(spec, "float32", BLOCK), canonical(spec, model.state_dict())
    length = spec.rope.original_max_position + 20
    tokens, blocks = torch.randint(0, spec.vocab_size, (length,)), range(1, 1 + length)
    pools, cache, start = make_pools(graph, length + 1), None, 60
    actual = [run_graph(graph, weights, step_inputs([Chunk(tokens.tolist(), 0, blocks)]), pools)["logits"]]
    expected = []
    with torch.no_grad():
        for a, b in [(0, start), *((i, i + 1) for i in range(start, length))]:
            output = model(tokens[None, a:b], cache=cache, use_cache=True)
            cache = output.cache
            expected.append(output.logits[0])
    assert (torch.cat(actual) - torch.cat(expected)).abs().max() <= 1e-4
