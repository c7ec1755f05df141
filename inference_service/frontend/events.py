"""From plain data to the messages of a Generate stream."""

from __future__ import annotations

from collections.abc import Sequence

from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from enginehouse._gen.enginehouse.inference.v1 import sampling_pb2 as spb
from inference_service.executor.messages import FinishReason, RequestMetrics, TokenLogprobs
from inference_service.frontend.clock import to_timestamp
from inference_service.frontend.prompts import Prompt
from inference_service.text.output import Delta, Finish

_REASONS: dict[FinishReason, pb.FinishReason] = {
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "timeout": pb.FINISH_REASON_TIMEOUT,
    "cancelled": pb.FINISH_REASON_CANCELLED,
}


def accepted(request_id: str, server_id: str, prompt: Prompt, model: tuple[str, str], arrival: float) -> pb.Event:
    """`model`: served name and version. `arrival` in time.monotonic() seconds."""
    name, version = model
    return pb.Event(
        request_id=request_id,
        accepted=pb.Accepted(
            server_id=server_id,
            prompt_tokens=len(prompt.token_ids),
            model=name,
            version=version,
            arrival_time=to_timestamp(arrival),
        ),
    )


def prompt_info(request_id: str, prompt: Prompt) -> pb.Event:
    return pb.Event(request_id=request_id, prompt=pb.PromptInfo(token_ids=prompt.token_ids, text=prompt.text))


def delta(request_id: str, part: Delta) -> pb.Event:
    return pb.Event(
        request_id=request_id,
        delta=pb.Delta(token_ids=part.token_ids, text=part.text, logprobs=_logprobs(part.logprobs)),
    )


def finished(request_id: str, finish: Finish, whole: Delta) -> pb.Event:
    """`whole`: the output where no deltas were sent, else empty."""
    message = pb.Finished(
        reason=_REASONS[finish.reason],
        token_ids=whole.token_ids,
        text=whole.text,
        logprobs=_logprobs(whole.logprobs),
        completion_tokens=finish.completion_tokens,
    )
    if finish.stop_text is not None:
        message.stop_text = finish.stop_text
    elif finish.stop_token_id is not None:
        message.stop_token_id = finish.stop_token_id
    if finish.cumulative_logprob is not None:
        message.cumulative_logprob = finish.cumulative_logprob
    return pb.Event(request_id=request_id, finished=message)


def done(
    request_id: str, prompt_tokens: int, completion_tokens: int, metrics: RequestMetrics | None, *, perf: bool
) -> pb.Event:
    """`metrics` is None for a request that never reached the executor."""
    usage = pb.Usage(
        prompt_tokens=prompt_tokens,
        cached_tokens=metrics.cached_tokens if metrics else 0,
        completion_tokens=completion_tokens,
    )
    message = pb.Done(usage=usage)
    if perf and metrics is not None:
        message.perf_metrics.CopyFrom(_perf_metrics(metrics))
    return pb.Event(request_id=request_id, done=message)


def failed(request_id: str, error: errors.EnginehouseError) -> pb.Event:
    return pb.Event(request_id=request_id, error=errors.to_status(error))


def _logprobs(positions: Sequence[TokenLogprobs]) -> list[spb.TokenLogprobs]:
    return [
        spb.TokenLogprobs(
            top=[
                spb.Logprob(token_id=token_id, logprob=logprob, rank=rank)
                for token_id, logprob, rank in zip(each.token_ids, each.logprobs, each.ranks, strict=True)
            ]
        )
        for each in positions
    ]


def _perf_metrics(metrics: RequestMetrics) -> pb.PerfMetrics:
    """Times that never came (a request cancelled while it waited) stay absent."""
    times = {
        "arrival_time": metrics.arrival,
        "first_scheduled_time": metrics.first_scheduled,
        "first_token_time": metrics.first_token,
        "last_token_time": metrics.last_token,
    }
    cache = pb.KvCacheMetrics(
        num_total_allocated_blocks=metrics.allocated_blocks,
        num_new_allocated_blocks=metrics.allocated_blocks - metrics.reused_blocks,
        num_reused_blocks=metrics.reused_blocks,
    )
    return pb.PerfMetrics(
        **{name: to_timestamp(seconds) for name, seconds in times.items() if seconds},
        kv_cache=cache,
        preemptions=metrics.preemptions,
    )
