"""The in-memory store through the real google.longrunning.Operations service."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import NamedTuple

import grpc
import pytest
from google.longrunning import operations_pb2 as lro
from google.longrunning import operations_pb2_grpc
from google.protobuf import duration_pb2, wrappers_pb2

from enginehouse import errors
from service_kit.operations import InMemoryOperations, OperationsServicer
from service_kit.server import ServerSettings, serving

NOTHING = wrappers_pb2.StringValue()


class Running(NamedTuple):
    store: InMemoryOperations
    stub: operations_pb2_grpc.OperationsStub


@pytest.fixture
async def running():
    store = InMemoryOperations()

    async def register(daemon):
        daemon.add(operations_pb2_grpc.add_OperationsServicer_to_server, OperationsServicer(store))
        daemon.on_stop(store.close)

    async with (
        serving(ServerSettings(port=0, grace_seconds=2), register) as daemon,
        grpc.aio.insecure_channel(f"127.0.0.1:{daemon.port}") as channel,
    ):
        yield Running(store, operations_pb2_grpc.OperationsStub(channel))


async def answer(handle):
    return wrappers_pb2.StringValue(value="made")


async def never(handle):
    await asyncio.Event().wait()
    return NOTHING


@contextlib.contextmanager
def refused(cls):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert type(errors.from_rpc_error(caught.value)) is cls


async def test_waiting_returns_the_response(running):
    made = running.store.start(answer, NOTHING, NOTHING)
    assert not made.done
    done = await running.stub.WaitOperation(lro.WaitOperationRequest(name=made.name))
    value = wrappers_pb2.StringValue()
    assert done.done
    assert done.response.Unpack(value)
    assert value.value == "made"


async def test_waiting_ends_at_its_timeout(running):
    made = running.store.start(never, NOTHING, NOTHING)
    request = lro.WaitOperationRequest(name=made.name, timeout=duration_pb2.Duration(nanos=50_000_000))
    assert not (await running.stub.WaitOperation(request, timeout=5)).done


async def test_a_failure_while_running_is_the_operations_error(running):
    async def fail(handle):
        raise errors.DataLoss("Build it again.", reason="DIGEST_MISMATCH", metadata={"file": "rank0"})

    made = running.store.start(fail, NOTHING, NOTHING)
    done = await running.stub.WaitOperation(lro.WaitOperationRequest(name=made.name))
    back = errors.from_status(done.error)
    assert (type(back), back.reason) == (errors.DataLoss, "DIGEST_MISMATCH")


async def test_metadata_is_seen_while_it_runs(running):
    reported = asyncio.Event()

    async def work(handle):
        handle.update(wrappers_pb2.StringValue(value="half"))
        reported.set()
        return await never(handle)

    made = running.store.start(work, NOTHING, NOTHING)
    await reported.wait()
    seen = await running.stub.GetOperation(lro.GetOperationRequest(name=made.name))
    value = wrappers_pb2.StringValue()
    assert seen.metadata.Unpack(value)
    assert value.value == "half"


async def test_cancelling_ends_it_with_cancelled(running):
    made = running.store.start(never, NOTHING, NOTHING)
    await running.stub.CancelOperation(lro.CancelOperationRequest(name=made.name))
    done = await running.stub.WaitOperation(lro.WaitOperationRequest(name=made.name))
    assert done.error.code == grpc.StatusCode.CANCELLED.value[0]


async def test_cancelling_a_done_one_changes_nothing(running):
    made = running.store.start(answer, NOTHING, NOTHING)
    await running.stub.WaitOperation(lro.WaitOperationRequest(name=made.name))
    await running.stub.CancelOperation(lro.CancelOperationRequest(name=made.name))
    assert (await running.stub.GetOperation(lro.GetOperationRequest(name=made.name))).HasField("response")


async def test_only_a_done_one_can_be_deleted(running):
    made = running.store.start(never, NOTHING, NOTHING)
    with refused(errors.FailedPrecondition):
        await running.stub.DeleteOperation(lro.DeleteOperationRequest(name=made.name))
    await running.store.cancel(made.name)
    await running.stub.WaitOperation(lro.WaitOperationRequest(name=made.name))
    await running.stub.DeleteOperation(lro.DeleteOperationRequest(name=made.name))
    with refused(errors.NotFound):
        await running.stub.GetOperation(lro.GetOperationRequest(name=made.name))


async def test_lists_are_paged_newest_first(running):
    made = [running.store.start(answer, NOTHING, NOTHING).name for _ in range(5)]
    names, token = [], ""
    while True:
        page = await running.stub.ListOperations(lro.ListOperationsRequest(page_size=2, page_token=token))
        names += [operation.name for operation in page.operations]
        token = page.next_page_token
        if not token:
            break
    assert names == made[::-1]


async def test_a_filter_is_refused_by_name(running):
    with refused(errors.Unimplemented):
        await running.stub.ListOperations(lro.ListOperationsRequest(filter="done=true"))
    with refused(errors.InvalidArgument):
        await running.stub.ListOperations(lro.ListOperationsRequest(page_size=-1))


async def test_the_same_request_id_gives_the_same_operation():
    store, request_id = InMemoryOperations(), str(uuid.uuid4())
    first = store.start(answer, NOTHING, NOTHING, request_id)
    assert store.start(answer, NOTHING, NOTHING, request_id).name == first.name
    with pytest.raises(errors.AlreadyExists):
        store.start(answer, NOTHING, wrappers_pb2.StringValue(value="other"), request_id)
    with pytest.raises(errors.InvalidArgument):
        store.start(answer, NOTHING, NOTHING, "not-a-uuid")
    await store.close()


async def test_closing_cancels_what_runs():
    store = InMemoryOperations()
    made = store.start(never, NOTHING, NOTHING)
    await asyncio.sleep(0)
    await store.close()
    assert (await store.get(made.name)).done
