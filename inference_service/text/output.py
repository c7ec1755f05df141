"""One sequence's output: executor deltas in, wire deltas out. No I/O.

Text, ids and logprobs of one delta cover the same tokens: a token waits until its text is settled (no character is
broken) and can no longer be part of a stop string.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inference_service.executor.messages import FinishReason, RequestOutput, TokenLogprobs
from inference_service.text.detokenizer import Detokenizer, make_detokenizer
from inference_service.text.stops import StopChecker, StopMatch
from inference_service.text.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How one sequence becomes text."""

    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    """Whether the matched stop, text or id, stays in the text."""
    min_tokens: int = 1
    """A stop string completed by an earlier token than this one (counted from 1) never counts."""
    stop_of_id: Mapping[int, str] = field(default_factory=dict)
    """Special tokens that are spelled like one of `stops`; the executor stops at them by id."""
    end_ids: frozenset[int] = frozenset()
    """Ids that end generation without being a stop of the caller's."""
    echo: tuple[int, ...] = ()
    """Prompt ids that the output begins with."""


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one sequence. `logprobs` has one entry per token, or is empty where none were asked for."""

    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprobs]


class Finish(NamedTuple):
    """Why a sequence ended. At most one of the stops is set; neither for an end id."""

    reason: FinishReason
    stop_text: str | None
    stop_token_id: int | None
    cumulative_logprob: float | None
    completion_tokens: int


class Progress(NamedTuple):
    """What one executor output brought: a delta if tokens were released, the finish if it ended.
    `stop_executor`: a stop string matched, the executor does not know yet."""

    delta: Delta | None
    finish: Finish | None = None
    stop_executor: bool = False


class DeltaBuffer:
    """Merges deltas until they are taken."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprobs] = []

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, delta: Delta) -> None:
        self._ids += delta.token_ids
        self._texts.append(delta.text)
        self._logprobs += delta.logprobs

    def take(self) -> Delta:
        """Everything added since the last call, as one delta; empty lists and text if there was nothing."""
        delta = Delta(self._ids, "".join(self._texts), self._logprobs)
        self._ids, self._texts, self._logprobs = [], [], []
        return delta


class OutputProcessor:
    """Owns one sequence's text from its first token to its finish."""

    def __init__(self, options: TextOptions, vocabulary: Vocabulary | None) -> None:
        assert vocabulary is not None or not options.detokenize
        self._options = options
        self._stops = StopChecker(options.stops)
        self._detokenizer = self._make_detokenizer(vocabulary)
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._text = ""
        self._text_start = 0  # where _text begins, in characters of the generated text
        self._boundaries: deque[tuple[int, int]] = deque()  # (ids, end in characters) where a delta may end
        self._released = 0  # ids taken out of the front of _ids so far
        self._generated = 0
        self._cumulative_logprob: float | None = None
        self._finished = False
        for token_id in options.echo:
            self._echo(token_id)

    def process(self, output: RequestOutput) -> Progress:
        """Takes what the executor produced next. Outputs after the finish are ignored."""
        if self._finished:
            return Progress(None)
        stop_id = output.stop_token_id if output.finish_reason == "stop" else None
        plain = output.token_ids if stop_id is None else output.token_ids[:-1]
        logprobs = output.logprobs or []
        for i, token_id in enumerate(plain):
            match = self._push(token_id, logprobs[i] if logprobs else None)
            if match is not None:
                return self._end("stop", match=match, stop_executor=output.finish_reason is None)
        if stop_id is not None:
            return self._end_by_id(stop_id, logprobs[-1] if logprobs else None)
        if output.finish_reason is not None:
            return self._end(output.finish_reason, match=self._flush())
        return Progress(self._release())

    def _make_detokenizer(self, vocabulary: Vocabulary | None) -> Detokenizer | None:
        if vocabulary is None or not self._options.detokenize:
            return None
        return make_detokenizer(
            vocabulary,
            skip_special_tokens=self._options.skip_special_tokens,
            spaces_between_special_tokens=self._options.spaces_between_special_tokens,
        )

    def _echo(self, token_id: int) -> None:
        """A prompt token: in the output, but neither counted nor searched for stops."""
        self._ids.append(token_id)
        if self._detokenizer is not None:
            piece = self._detokenizer.push(token_id)
            self._text += piece
            self._text_start -= len(piece)

    def _push(self, token_id: int, logprobs: TokenLogprobs | None) -> StopMatch | None:
        self._append(token_id, logprobs)
        if self._detokenizer is None:
            self._mark_boundary()
            return None
        match = self._add_text(self._detokenizer.push(token_id))
        if not self._detokenizer.pending:
            self._mark_boundary()
        return match

    def _append(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        self._ids.append(token_id)
        self._generated += 1
        if logprobs is not None:
            self._logprobs.append(logprobs)
            self._cumulative_logprob = (self._cumulative_logprob or 0.0) + logprobs.logprobs[0]

    def _add_text(self, piece: str) -> StopMatch | None:
        self._text += piece
        return self._stops.feed(piece, active=self._generated >= self._options.min_tokens)

    def _mark_boundary(self) -> None:
        self._boundaries.append((self._released + len(self._ids), self._text_start + len(self._text)))

    def _flush(self) -> StopMatch | None:
        return self._add_text(self._detokenizer.flush()) if self._detokenizer is not None else None

    def _release(self) -> Delta | None:
        """The tokens up to the last boundary before what the stop strings hold back."""
        safe = self._text_start + len(self._text) - self._stops.held
        boundary = None
        while self._boundaries and self._boundaries[0][1] <= safe:
            boundary = self._boundaries.popleft()
        if boundary is None:
            return None
        return self._take(boundary[0] - self._released, boundary[1] - self._text_start)

    def _take(self, num_ids: int, num_chars: int) -> Delta:
        delta = Delta(self._ids[:num_ids], self._text[:num_chars], self._logprobs[:num_ids])
        self._ids, self._text, self._logprobs = (
            self._ids[num_ids:],
            self._text[num_chars:],
            self._logprobs[num_ids:],
        )
        self._released += num_ids
        self._text_start += num_chars
        return delta

    def _end_by_id(self, stop_id: int, logprobs: TokenLogprobs | None) -> Progress:
        match = self._flush()
        self._append(stop_id, logprobs)
        if match is not None:
            return self._end("stop", match=match)
        stop_text = self._options.stop_of_id.get(stop_id)
        if self._options.include_stop and self._detokenizer is not None:
            self._text += stop_text or self._detokenizer.push(stop_id) + self._detokenizer.flush()
        is_end = stop_text is not None or stop_id in self._options.end_ids
        return self._end("stop", stop_text=stop_text, stop_token_id=None if is_end else stop_id)

    def _end(
        self,
        reason: FinishReason,
        *,
        match: StopMatch | None = None,
        stop_text: str | None = None,
        stop_token_id: int | None = None,
        stop_executor: bool = False,
    ) -> Progress:
        self._finished = True
        if match is not None:
            reason, stop_text = "stop", match.text
            cut = match.end if self._options.include_stop else match.start
            self._text = self._text[: cut - self._text_start]
        delta = self._take(len(self._ids), len(self._text)) if self._ids else None
        finish = Finish(reason, stop_text, stop_token_id, self._cumulative_logprob, self._generated)
        return Progress(delta, finish, stop_executor)


def special_stops(stops: Sequence[str], vocabulary: Vocabulary) -> dict[int, str]:
    """The stop strings that are the spelling of one special token, by its id."""
    ids = {vocabulary.token_id(stop): stop for stop in stops}
    return {token_id: stop for token_id, stop in ids.items() if token_id in vocabulary.special_ids}
