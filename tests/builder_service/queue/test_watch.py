"""What watchers, and readers of an operation, see of a build over a real socket."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
import uuid

import grpc
import pytest
from google.longrunning import operations_pb2

from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from service_kit.pagination import encode
from tests.builder_service.serving import Remote, metadata, refused

INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def now(remote: Remote, operation: operations_pb2.Operation) -> pb.BuildMetadata:
    request = operations_pb2.GetOperationRequest(name=operation.name)
    return metadata(await remote.operations.GetOperation(request))


def watch(remote: Remote, operation: operations_pb2.Operation, after: int = 0) -> grpc.aio.UnaryStreamCall:
    return remote.builder.WatchBuild(pb.WatchBuildRequest(operation=operation.name, after_sequence=after))


async def test_a_watcher_that_does_not_read_neither_slows_the_build_nor_misses_anything(remote: Remote) -> None:
    """The build says more than the connection buffers."""
    operation = await remote.builder.BuildEngine(remote.request("talk"))
    slow = aiter(watch(remote, operation))
    first = await anext(slow)
    assert metadata(await remote.done(operation)).stage == pb.BUILD_STAGE_SUCCEEDED
    events = [first] + [event async for event in slow]
    assert events == [event async for event in watch(remote, operation)]
    sequences = [event.sequence for event in events]
    assert sequences == sorted(set(sequences))
    logs = [event.log.text for event in events if event.WhichOneof("event") == "log"]
    assert [text.split()[0] for text in logs[:1000]] == [str(number) for number in range(1000)]
    assert events[-1].finished.stage == pb.BUILD_STAGE_SUCCEEDED


async def test_a_watcher_that_is_cut_off_again_and_again_misses_nothing(remote: Remote) -> None:
    operation = await remote.builder.BuildEngine(remote.request("still"))
    seen: list[pb.BuildEvent] = []
    while not seen or seen[-1].WhichOneof("event") != "finished":
        stream = watch(remote, operation, seen[-1].sequence if seen else 0)
        for _ in range(3):
            event = await stream.read()
            if event is grpc.aio.EOF:
                break
            seen.append(event)
        stream.cancel()
    assert seen == [event async for event in watch(remote, operation)]


async def test_a_sequence_that_the_build_has_not_reached_is_refused_and_not_waited_for(remote: Remote) -> None:
    operation = await remote.build()
    last = metadata(operation).last_sequence
    assert await watch(remote, operation, last).read() is grpc.aio.EOF
    for after, reason in ((last + 1, "SEQUENCE_AHEAD"), (1 << 62, "SEQUENCE_AHEAD"), (-1, "INVALID_ARGUMENT")):
        with refused(reason, INVALID) as caught:
            await watch(remote, operation, after).read()
        assert caught[0].metadata["field"] == "after_sequence"
    with refused("OPERATION_NOT_FOUND", grpc.StatusCode.NOT_FOUND):
        await watch(remote, operations_pb2.Operation(name="operations/lost")).read()


async def test_the_expected_end_moves_while_a_build_runs_and_is_not_in_the_past(remote: Remote) -> None:
    running_build = await remote.builder.BuildEngine(remote.request("still"))
    waiting = await remote.builder.BuildEngine(remote.request("publish", engine_id="other"))
    seen = []
    while not (found := await now(remote, running_build)).HasField("end_time"):
        if found.stage != pb.BUILD_STAGE_QUEUED:
            assert found.expected_end_time.ToNanoseconds() / 1e9 > time.time() - 1.0
            seen.append((found.fraction, found.expected_end_time.ToNanoseconds()))
        assert not (await now(remote, waiting)).HasField("expected_end_time")
        await asyncio.sleep(0.5)
    assert not found.HasField("expected_end_time")
    assert len(set(seen)) > 5
    assert all(earlier[0] <= later[0] for earlier, later in itertools.pairwise(seen))


async def test_a_followers_metadata_names_whose_result_it_takes(remote: Remote) -> None:
    leader = await remote.builder.BuildEngine(remote.request("held", priority=0.25))
    follower = await remote.builder.BuildEngine(remote.request("held", labels={"who": "me"}, alias="prod"))
    found = await now(remote, leader)
    assert (found.priority, found.shares_operation, found.queue_position) == (0.25, "", 0)
    found = await now(remote, follower)
    assert (found.priority, found.shares_operation, found.queue_position) == (0.5, leader.name, 1)
    (remote.root / "state" / "cache" / "go").touch()
    found = metadata(await remote.done(follower))
    assert (found.stage, found.reused, found.shares_operation) == (pb.BUILD_STAGE_SUCCEEDED, True, leader.name)
    assert remote.store.get_alias("tiny", "prod").version == 1


@pytest.mark.parametrize("priority", [-0.1, 1.5, math.nan, math.inf])
async def test_a_priority_is_between_0_and_1(remote: Remote, priority: float) -> None:
    with refused("INVALID_ARGUMENT", INVALID) as caught:
        await remote.builder.BuildEngine(remote.request(priority=priority))
    assert caught[0].metadata["field"] == "priority"


async def test_a_request_id_is_the_same_however_it_is_spelt(remote: Remote) -> None:
    number = uuid.uuid4()
    spellings = (str(number), str(number).upper(), number.hex, f"{{{number}}}")
    made = {(await remote.builder.BuildEngine(remote.request(request_id=each))).name for each in spellings}
    assert len(made) == 1


async def test_pages_of_operations_take_no_foreign_token(remote: Remote) -> None:
    for key in ("b1", "bx" * 10, "c", 7):
        with refused("INVALID_PAGE_TOKEN", INVALID):
            token = encode(key, "operations")
            await remote.operations.ListOperations(operations_pb2.ListOperationsRequest(page_token=token))
