"""Laws 6 and 7: a reader that lags costs one merged delta; one that stops loses its requests; others notice nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from inference_service.frontend.session import GenerateSession, SessionLimits

from .serving import Rig, Stream, serve, start

LONG = {"max_tokens": 240, "ignore_eos": True}


class SlowWriter:
    """A client whose flow control lets one message through each time `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.responses: list[pb.GenerateResponse] = []

    async def write(self, response: pb.GenerateResponse) -> None:
        await self.go.wait()
        self.responses.append(response)


async def messages(*starts: pb.Start) -> Any:
    for each in starts:
        yield pb.GenerateRequest(start=each)


def session(rig: Rig, **limits: Any) -> GenerateSession:
    return GenerateSession(rig.frontend._admitter.admit, SessionLimits(**limits), None)


async def test_deltas_merge_while_the_reader_lags(rig: Rig) -> None:
    writer = SlowWriter()
    starts = [start(str(i), stream=True, sampling=LONG) for i in range(4)]
    run = asyncio.create_task(session(rig).run(messages(*starts), writer.write))
    await asyncio.sleep(0.05)
    await rig.settled()
    writer.go.set()
    await run
    deltas = [e.delta for r in writer.responses for e in r.events if e.WhichOneof("event") == "delta"]
    assert sum(len(delta.token_ids) for delta in deltas) == 4 * 240
    assert len(deltas) <= 8


async def test_a_stream_that_is_not_read_loses_its_requests_with_resource_exhausted(rig: Rig) -> None:
    rig.runner.step_seconds = 0.01
    writer = SlowWriter()
    run = session(rig, unread_seconds=0.2).run(messages(start("x", stream=True, sampling=LONG)), writer.write)
    with pytest.raises(errors.ResourceExhausted, match="did not read"):
        await run
    await rig.settled()
    assert rig.model.engine.executor.stats().used_blocks == 0
    assert rig.runner.steps < 100


async def test_a_reader_that_floods_starts_is_held_back(rig: Rig) -> None:
    writer = SlowWriter()
    taken = 0

    async def flood() -> Any:
        nonlocal taken
        for i in range(500):
            taken += 1
            yield pb.GenerateRequest(start=start(str(i), ids=[]))

    run = asyncio.create_task(session(rig, max_unsent_requests=50).run(flood(), writer.write))
    await asyncio.sleep(0.1)
    assert taken <= 102  # one message that is being written, and one bound of unsent ones
    writer.go.set()
    await run
    assert sum(len(r.events) for r in writer.responses) == 500


async def test_over_a_socket_a_stalled_stream_ends_and_the_others_do_not_wait(
    tmp_path: Path, bytes_tokenizer_dir: Path
) -> None:
    options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]  # windows stay at 64 KiB
    async with serve(tmp_path, bytes_tokenizer_dir, limits=SessionLimits(unread_seconds=2.0)) as rig:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.daemon.port}", options=options) as channel:
            stalled = Stream(type(rig.inference)(channel).Generate(timeout=60))
            rig.runner.step_seconds = 0.02
            await stalled.start(start("live", stream=True, sampling=LONG))
            await stalled.until("delta")
            for i in range(500):  # answers that the client does not read
                await stalled.start(start(f"{i:0128}", ids=[]))
            began = time.monotonic()
            assert (await rig.one(start(sampling={"max_tokens": 2}))).reason == "LENGTH"
            assert time.monotonic() - began < 2.0
            await rig.settled()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stalled.outcomes()
        assert errors.from_rpc_error(caught.value).reason == "STREAM_NOT_READ"
        assert rig.model.engine.executor.stats().used_blocks == 0
