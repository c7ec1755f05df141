"""Draws one token for each row of logits.

A row's result depends on its own logits, parameters, seed and position alone. Order of the filters: temperature,
top_k, top_p (over what top_k kept), min_p (relative to the best). Greedy rows take the first maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from inference_service.executor.messages import Sampling, TokenLogprobs
from inference_service.runners.base import Rows, Sampled
from inference_service.runners.philox import uniforms

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them would overflow."""
_FEW = 1024
"""Candidates that are looked at before the whole vocabulary is sorted."""


def is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature < GREEDY_BELOW or sampling.top_k == 1


def sample(logits: torch.Tensor, rows: Rows) -> Sampled:
    """Draws a token for each row of `logits` [R, V] (float32, any device). `logits` is unchanged on return.

    A row whose maximum is a NaN or infinite is reported in `bad_rows`, with token 0; its neighbours are not touched.
    """
    saved = _ban(logits, rows.banned)
    token_ids = _argmax(logits)
    best = logits.gather(1, token_ids[:, None])
    # A NaN counts as the greatest value, so one look at the maximum finds it.
    bad = ~best.isfinite()[:, 0]
    random_rows = [row for row, sampling in enumerate(rows.sampling) if not is_greedy(sampling)]
    if random_rows:
        drawn = _Random([rows.sampling[row] for row in random_rows], logits[random_rows], best[random_rows])
        token_ids[random_rows] = drawn.draw(rows.positions[random_rows])
    _restore(logits, saved)
    token_ids = token_ids.masked_fill(bad, 0)
    ids = token_ids.to("cpu", torch.int32).numpy()
    bad_rows = tuple(int(row) for row in bad.nonzero()[:, 0].tolist())
    return Sampled(ids, _logprobs(logits, ids, rows.sampling, bad_rows), bad_rows)


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """The first of the greatest [R]. NumPy's is some ten times faster than torch's on a CPU."""
    return torch.from_numpy(logits.numpy().argmax(axis=-1)) if logits.device.type == "cpu" else logits.argmax(dim=-1)


class _Saved(NamedTuple):
    row: torch.Tensor
    column: torch.Tensor
    value: torch.Tensor


def _ban(logits: torch.Tensor, banned: dict[int, tuple[int, ...]]) -> _Saved | None:
    """Sets the banned entries to -inf in place and keeps their values."""
    pairs = [(row, token) for row, tokens in banned.items() for token in tokens]
    if not pairs:
        return None
    index = torch.tensor(pairs, device=logits.device)
    saved = _Saved(index[:, 0], index[:, 1], logits[index[:, 0], index[:, 1]])
    logits[saved.row, saved.column] = -torch.inf
    return saved


def _restore(logits: torch.Tensor, saved: _Saved | None) -> None:
    if saved is not None:
        logits[saved.row, saved.column] = saved.value


class _Split(NamedTuple):
    plain: list[int]
    """Rows without a filter: drawn in the order of the ids."""
    few: list[int]
    """Rows whose candidates are probably among the best few."""
    whole: list[int]
    """Rows that need the whole vocabulary sorted."""


def _split(sampling: list[Sampling], vocab_size: int) -> _Split:
    split = _Split([], [], [])
    for i, s in enumerate(sampling):
        top_k = s.top_k if 0 < s.top_k < vocab_size else 0
        if not top_k and s.top_p >= 1.0 and s.min_p <= 0.0:
            split.plain.append(i)
        elif vocab_size <= _FEW or top_k > _FEW:
            split.whole.append(i)
        else:
            split.few.append(i)
    return split


class _Random:
    """The rows that are not greedy. logits [S, V], best [S, 1]: each row's greatest."""

    def __init__(self, sampling: list[Sampling], logits: torch.Tensor, best: torch.Tensor) -> None:
        self._sampling = sampling
        self._logits = logits
        self._best = best
        self._temperature = torch.tensor([[s.temperature] for s in sampling], dtype=torch.float64).to(logits.device)

    def draw(self, positions: npt.NDArray[np.int32]) -> torch.Tensor:
        """Token ids [S]."""
        numbers = uniforms([s.seed for s in self._sampling], positions.astype(np.int64))
        uniform = torch.from_numpy(numbers).to(self._logits.device)
        result = torch.empty(len(self._sampling), dtype=torch.int64, device=self._logits.device)
        plain, few, whole = _split(self._sampling, self._logits.shape[1])
        if plain:
            result[plain] = _inverse_cdf(self._mass(plain), uniform[plain])
        if few:
            result[few], unsure = self._from_best(few, uniform[few])
            whole += unsure
        if whole:
            values, ids = self._logits[whole].sort(dim=1, descending=True, stable=True)
            weights = _filter(self._weights(values, whole), None, [self._sampling[i] for i in whole])
            result[whole] = ids.gather(1, _inverse_cdf(weights, uniform[whole])[:, None])[:, 0]
        return result

    def _mass(self, rows: list[int]) -> torch.Tensor:
        """Weights of the whole vocabulary, in the order of the ids: float32, for sums in float64."""
        return ((self._logits[rows] - self._best[rows]) / self._temperature[rows].float()).exp()

    def _weights(self, values: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Weights [S, C] float64 of some logits of each row; the best has 1."""
        return ((values.double() - self._best[rows]) / self._temperature[rows]).exp()

    def _from_best(self, rows: list[int], uniform: torch.Tensor) -> _Drawn:
        """Draws from the best `_FEW` candidates."""
        sampling = [self._sampling[i] for i in rows]
        limit = max((s.top_k if 0 < s.top_k <= _FEW else _FEW) for s in sampling)
        values, ids = self._logits[rows].topk(limit + 1, dim=1)
        # topk orders ties as it likes: order them by id.
        ids, by_id = ids.sort(dim=1)
        values, by_value = values.gather(1, by_id).sort(dim=1, descending=True, stable=True)
        ids = ids.gather(1, by_value)
        wanted = any(s.top_p < 1.0 and not 0 < s.top_k <= _FEW for s in sampling)
        total = self._mass(rows).sum(dim=1, dtype=torch.float64) if wanted else None
        weights = _filter(self._weights(values, rows), total, sampling)
        drawn = ids.gather(1, _inverse_cdf(weights, uniform)[:, None])[:, 0]
        tied = values[:, -1] == values[:, -2]
        unsure = (weights[:, -1] > 0) | (tied & (weights[:, -2] > 0))
        return _Drawn(drawn, [rows[i] for i in unsure.nonzero()[:, 0].tolist()])


class _Drawn(NamedTuple):
    """Token ids, and the rows for which the best few may not suffice: the filters could keep more, or a tie at the
    boundary leaves open which they are."""

    token_ids: torch.Tensor
    unsure: list[int]


def _filter(weights: torch.Tensor, total: torch.Tensor | None, sampling: list[Sampling]) -> torch.Tensor:
    """Zeroes what the filters remove. weights [S, C]: exp of the scores, best first, so weights[:, 0] is 1.

    `total` [S]: the mass of the whole vocabulary where `weights` holds only a part of it.
    """
    count = weights.shape[1]
    rank = torch.arange(count, device=weights.device)
    top_k = torch.tensor([s.top_k if s.top_k > 0 else count for s in sampling], device=weights.device)
    weights = weights * (rank < top_k[:, None])
    mass = weights.sum(dim=1)
    if total is not None:
        mass = torch.where(top_k < count, mass, total)
    top_p = torch.tensor([s.top_p for s in sampling], dtype=weights.dtype, device=weights.device)
    before = weights.cumsum(dim=1) - weights
    keep = (before < (top_p * mass)[:, None]) | (top_p >= 1.0)[:, None]
    min_p = torch.tensor([s.min_p for s in sampling], dtype=weights.dtype, device=weights.device)
    keep &= weights >= min_p[:, None]
    keep[:, 0] = True
    return weights * keep


def _inverse_cdf(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Index [S] of the candidate in which `uniform` [S] falls. weights [S, C], not normalised."""
    cumulative = weights.cumsum(dim=1, dtype=torch.float64)
    index = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)
    # Rounding may carry uniform * total to the total itself: then the last candidate with any weight is meant.
    last = weights.shape[1] - 1 - (weights > 0).flip(1).to(torch.uint8).argmax(dim=1)
    return torch.minimum(index[:, 0], last)


def _logprobs(
    logits: torch.Tensor, token_ids: npt.NDArray[np.int32], sampling: Sequence[Sampling], bad_rows: tuple[int, ...]
) -> tuple[TokenLogprobs | None, ...]:
    """Log-probabilities of the raw distribution, for the rows that ask."""
    index = [row for row, s in enumerate(sampling) if s.logprobs is not None and row not in bad_rows]
    result: list[TokenLogprobs | None] = [None] * len(sampling)
    if not index:
        return tuple(result)
    scores = logits[index].log_softmax(dim=1)
    chosen = torch.from_numpy(token_ids[index]).to(scores.device, torch.int64)
    chosen_score = scores.gather(1, chosen[:, None])
    ranks = ((scores > chosen_score).sum(dim=1) + 1).tolist()
    most = min(max(sampling[row].logprobs or 0 for row in index), logits.shape[1])
    values, ids = scores.topk(most, dim=1)
    best = zip(values.tolist(), ids.tolist(), strict=True)
    for row, own, token, rank, (value, ident) in zip(
        index, chosen_score[:, 0].tolist(), chosen.tolist(), ranks, best, strict=True
    ):
        count = min(sampling[row].logprobs or 0, most)
        entries = [(token, own, rank)]
        entries += [(t, v, i + 1) for i, (t, v) in enumerate(zip(ident[:count], value, strict=False)) if t != token]
        result[row] = TokenLogprobs(*(tuple(column) for column in zip(*entries, strict=True)))
    return tuple(result)
