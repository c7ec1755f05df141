"""Laws of the sampler: filters, independence of neighbours, log-probabilities of the raw distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_service.executor.messages import Sampling
from inference_service.runners.base import Rows
from inference_service.runners.philox import philox4x32, uniforms
from inference_service.runners.sampler import sample


def rows_of(*sampling: Sampling, positions: list[int] | None = None, banned=None) -> Rows:
    return Rows(sampling, np.array(positions or [0] * len(sampling), np.int32), banned or {})


def reference(logits: np.ndarray, s: Sampling, position: int) -> int:
    """The law in plain words, for one row."""
    if s.temperature < 1e-5 or s.top_k == 1:
        return int(logits.argmax())
    scores = (logits.astype(np.float64) - logits.max()) / s.temperature
    weights = np.exp(scores)
    order = np.arange(len(logits))
    filtered = (0 < s.top_k < len(logits)) or s.top_p < 1 or s.min_p > 0
    if filtered:
        order = np.argsort(-scores, kind="stable")
        weights = weights[order]
        if s.top_k > 0:
            weights[s.top_k :] = 0
        mass, kept = weights.sum(), 0.0
        for i in range(len(weights)):
            before, kept = kept, kept + weights[i]
            if i and ((s.top_p < 1 and before >= s.top_p * mass) or weights[i] < s.min_p):
                weights[i] = 0
    cumulative = weights.cumsum()
    u = uniforms([s.seed], np.array([position]))[0]
    return int(order[np.searchsorted(cumulative, u * cumulative[-1], side="right")])


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-8, 1e-4, 1e-2, 0.7, 1.0, 5.0, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 50, 1024, 1025, 10**6]),
    top_p=st.sampled_from([0.0, 1e-4, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    seed=st.integers(-(2**63), 2**64 - 1),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(samplings, min_size=1, max_size=5), st.sampled_from([7, 600, 3000]), st.integers(0, 2**31), st.booleans()
)
def test_every_row_follows_the_reference_whatever_its_neighbours(sampling, vocab, seed, ties):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(len(sampling), vocab)).astype(np.float32) * 3
    if ties:
        logits = logits.round()
    positions = random.integers(0, 5000, len(sampling)).tolist()
    result = sample(torch.from_numpy(logits), rows_of(*sampling, positions=positions))
    expected = [reference(logits[i], s, positions[i]) for i, s in enumerate(sampling)]
    assert result.token_ids.tolist() == expected


def test_philox_gives_the_published_vectors():
    # Known answers of the Random123 distribution (kat_vectors), philox4x32-10.
    ones = np.full((1, 4), 0xFFFFFFFF, np.uint64)
    pi = np.array([[0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]], np.uint64)
    zeros = philox4x32(np.zeros((1, 4), np.uint64), np.zeros((1, 2), np.uint64))
    assert [hex(v) for v in zeros[0]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert [hex(v) for v in philox4x32(ones, ones[:, :2])[0]] == [
        "0x408f276d",
        "0x41c83b0e",
        "0xa20bc7c6",
        "0x6d5451fd",
    ]
    key = np.array([[0xA4093822, 0x299F31D0]], np.uint64)
    assert [hex(v) for v in philox4x32(pi, key)[0]] == ["0xd16cfe09", "0x94fdcceb", "0x5001e420", "0x24126ea1"]


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=5), Sampling(temperature=1.0, top_p=0.8)]
)
def test_draws_follow_the_filtered_distribution(sampling):
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, 1.5])
    probabilities = logits.double().softmax(0)
    order = probabilities.argsort(descending=True)
    before = probabilities[order].cumsum(0) - probabilities[order]
    keep = before < sampling.top_p
    if sampling.top_k:
        keep[sampling.top_k :] = False
    expected = torch.zeros(8, dtype=torch.float64)
    expected[order[keep]] = probabilities[order[keep]]
    expected /= expected.sum()
    draws = 20_000
    result = sample(logits.repeat(draws, 1), rows_of(*[sampling] * draws, positions=list(range(draws))))
    counts = np.bincount(result.token_ids, minlength=8)
    assert counts[expected.numpy() == 0].sum() == 0
    kept = expected.numpy() > 0
    chi_square = ((counts[kept] - draws * expected.numpy()[kept]) ** 2 / (draws * expected.numpy()[kept])).sum()
    assert chi_square < 24.3  # 0.1 % quantile at 7 degrees of freedom


def test_a_seed_gives_the_same_tokens_in_any_slot_and_different_seeds_differ():
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(0)).repeat(4, 1)
    hot = [Sampling(temperature=100.0, seed=s) for s in (30, 31, 32, 33)]
    first = sample(logits, rows_of(*hot)).token_ids.tolist()
    assert sample(logits, rows_of(*hot[::-1])).token_ids.tolist() == first[::-1]
    assert sample(logits[:1], rows_of(hot[2])).token_ids.tolist() == first[2:3]
    assert len(set(first)) == 4


def test_banned_ids_are_never_drawn_and_logprobs_stay_raw():
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    before = logits.clone()
    sampling = Sampling(logprobs=1)
    result = sample(logits, rows_of(sampling, sampling, banned={0: (0,)}))
    assert result.token_ids.tolist() == [1, 0]
    assert torch.equal(logits, before)
    raw = before[0].log_softmax(0)
    assert result.logprobs[0].token_ids == (1, 0)
    assert result.logprobs[0].logprobs == pytest.approx((raw[1].item(), raw[0].item()))
    assert result.logprobs[0].ranks == (2, 1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_row_is_named_and_its_neighbours_are_unchanged(bad):
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    clean = sample(logits, rows_of(Sampling(), Sampling(logprobs=2), Sampling(temperature=1.0, top_p=0.9)))
    logits[1, 7] = bad
    result = sample(logits, rows_of(Sampling(), Sampling(logprobs=2), Sampling(temperature=1.0, top_p=0.9)))
    assert result.bad_rows == (1,)
    assert result.logprobs[1] is None
    assert result.token_ids[[0, 2]].tolist() == clean.token_ids[[0, 2]].tolist()


def test_logprobs_none_is_off_zero_is_the_sampled_token_and_k_adds_the_best():
    logits = torch.randn(4, 200, generator=torch.Generator().manual_seed(2))
    hot = {"temperature": 50.0, "seed": 5}
    result = sample(
        logits,
        rows_of(Sampling(**hot), Sampling(**hot, logprobs=0), Sampling(**hot, logprobs=2), Sampling(logprobs=2)),
    )
    off, own, two, greedy = result.logprobs
    assert off is None
    assert own.token_ids == (result.token_ids[1],)
    assert len(two.token_ids) in (2, 3)
    assert two.token_ids[0] == result.token_ids[2]
    assert greedy.ranks == (1, 2)
    scores = logits[2].log_softmax(0)
    for token, value, rank in zip(two.token_ids, two.logprobs, two.ranks, strict=True):
        assert value == pytest.approx(scores[token].item(), abs=1e-5)
        assert rank == int((scores > scores[token]).sum()) + 1


def test_all_logprobs_sum_to_one():
    logits = torch.randn(1, 64, generator=torch.Generator().manual_seed(3))
    result = sample(logits, rows_of(Sampling(temperature=1.0, top_p=0.1, logprobs=64)))
    assert np.exp(result.logprobs[0].logprobs).sum() == pytest.approx(1.0, abs=1e-5)
