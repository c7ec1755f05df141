"""Whatever a handler raises, the client gets one status with all that a program needs and nothing internal."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, inference_pb2_grpc, model_pb2
from service_kit import status

EMPTY = inference_pb2.GetServerInfoRequest()


async def call(running, method: str):
    """Calls one of the four arities and reads it to its end."""
    if method == "unary":
        return await running.inference.GetServerInfo(EMPTY)
    if method == "server_stream":
        return [part async for part in running.inference.GetTokenizer(inference_pb2.GetTokenizerRequest())]
    if method == "client_stream":
        return await running.models.UploadAdapter(iter([model_pb2.UploadAdapterRequest()]))
    return [part async for part in running.inference.Generate(iter([inference_pb2.GenerateRequest()]))]


def raising(exc: BaseException):
    async def behaviour(context):
        raise exc

    return behaviour


ARITIES = ["unary", "server_stream", "client_stream", "bidi"]


@pytest.mark.parametrize("arity", ARITIES)
async def test_an_expected_error_keeps_its_class_reason_and_metadata(start, arity):
    error = errors.FailedPrecondition("Load it first.", reason="MODEL_NOT_READY", metadata={"state": "LOADING"})
    async with start(raising(error)) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(running, arity)
    back = errors.from_rpc_error(caught.value)
    assert type(back) is errors.FailedPrecondition
    assert (back.message, back.reason, back.metadata) == ("Load it first.", "MODEL_NOT_READY", {"state": "LOADING"})


@pytest.mark.parametrize("arity", ARITIES)
async def test_an_unknown_exception_is_internal_and_tells_nothing(start, arity, capsys):
    async with start(raising(RuntimeError("secret /etc/path"))) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(running, arity)
    back = errors.from_rpc_error(caught.value)
    assert type(back) is errors.Internal
    assert back.reason == "INTERNAL"
    assert "secret" not in str(caught.value.trailing_metadata()) + str(caught.value.details())
    logged = capsys.readouterr()
    assert "secret /etc/path" in logged.out + logged.err


@pytest.mark.parametrize(
    "method", ["/enginehouse.inference.v1.InferenceService/GetLoad", "/grpc.health.v1.Health/Check"]
)
async def test_bytes_that_are_no_message_are_the_callers_fault(start, method):
    async with start() as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.channel.unary_unary(method)(b"\x0a\xff")
    back = errors.from_rpc_error(caught.value)
    assert (type(back), back.reason) == (errors.InvalidArgument, "MALFORMED_MESSAGE")


@pytest.mark.parametrize("arity", ARITIES)
async def test_a_handler_that_ends_well_is_untouched(start, arity):
    async with start() as running:
        assert await call(running, arity)
        assert running.daemon.calls.live_calls == 0


async def test_what_was_sent_before_the_failure_arrives(start):
    async with start(raising(errors.NotFound("gone"))) as running:
        stream = running.inference.GetTokenizer(inference_pb2.GetTokenizerRequest())
        assert (await stream.read()).path == "first"
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.read()


async def test_a_handlers_own_abort_passes(start):
    async def behaviour(context):
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "mine")

    async with start(behaviour) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.inference.GetServerInfo(EMPTY)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.OUT_OF_RANGE, "mine")


@pytest.mark.parametrize("arity", ["unary", "server_stream", "bidi"])
async def test_a_cancelled_call_cancels_its_handler(start, arity):
    cancelled, entered = asyncio.Event(), asyncio.Event()

    async def behaviour(context):
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with start(behaviour) as running:
        if arity == "unary":
            call = running.inference.GetServerInfo(EMPTY)
        elif arity == "server_stream":
            call = running.inference.GetTokenizer(inference_pb2.GetTokenizerRequest())
        else:
            call = running.inference.Generate(iter([inference_pb2.GenerateRequest()]))
        await entered.wait()
        assert call.cancel()
        await asyncio.wait_for(cancelled.wait(), 5)
        await asyncio.wait_for(running.daemon.calls.idle(), 5)


async def test_a_method_without_an_implementation_is_unimplemented(start):
    async with start() as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.inference.Tokenize(inference_pb2.TokenizeRequest())
    back = errors.from_rpc_error(caught.value)
    assert (type(back), back.reason) == (errors.Unimplemented, "UNSUPPORTED_METHOD")


async def test_our_own_not_implemented_error_is_internal(start):
    async with start(raising(NotImplementedError())) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.inference.GetServerInfo(EMPTY)
    assert caught.value.code() is grpc.StatusCode.INTERNAL


def details(exc: BaseException) -> dict[str, object]:
    found = {}
    for packed in status.to_status(exc).details:
        message = getattr(error_details_pb2, packed.type_url.rsplit(".", 1)[1])()
        packed.Unpack(message)
        found[message.DESCRIPTOR.name] = message
    return found


def test_exhaustion_says_when_to_retry_and_which_quota():
    found = details(errors.ResourceExhausted("full", reason="QUEUE_FULL", retry_after=1.5))
    assert set(found) == {"ErrorInfo", "RetryInfo", "QuotaFailure"}
    assert found["RetryInfo"].retry_delay.ToNanoseconds() == 1_500_000_000
    assert found["QuotaFailure"].violations[0].subject == "QUEUE_FULL"


def test_a_bad_field_is_named():
    found = details(errors.InvalidArgument("too big", metadata={"field": "sampling.n"}))
    assert found["BadRequest"].field_violations[0].field == "sampling.n"
    assert found["ErrorInfo"].domain == "enginehouse.dev"


@pytest.mark.parametrize("cls", list(errors.BY_CODE.values()))
def test_every_class_of_error_survives_the_wire(cls):
    sent = cls("What to do.", reason="SOME_REASON", metadata={"a": 1}, retry_after=0.25)
    back = errors.from_status(status.to_status(sent))
    assert (type(back), back.message, back.reason) == (cls, sent.message, sent.reason)
    assert (back.metadata, back.retry_after) == ({"a": "1"}, 0.25)
    assert rpc_status.to_status(status.to_status(sent)).code is cls.code


def test_every_status_has_exactly_one_error_info():
    for exc in (ValueError("x"), asyncio.CancelledError(), errors.NotFound("x")):
        kinds = [packed.type_url for packed in status.to_status(exc).details]
        assert sum(kind.endswith("ErrorInfo") for kind in kinds) == 1


@pytest.mark.parametrize("letter", ["x", "\n", "\u00e9", "\U0001f336", "\udcff"])
@pytest.mark.parametrize("error", [errors.InvalidArgument, errors.ResourceExhausted])
async def test_an_error_of_any_length_arrives(start, letter: str, error: type[errors.EnginehouseError]) -> None:
    long = letter * 100_000
    metadata = {"field": "source.path", "first": long, "second": long, "count": 7}
    failure = error(f"No {long}", reason="TOO_LONG", metadata=metadata, retry_after=1.0)
    async with start(raising(failure)) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(running, "unary")
    arrived = errors.from_rpc_error(caught.value)
    assert (type(arrived), arrived.reason) == (error, "TOO_LONG")
    assert (arrived.metadata["field"], arrived.metadata["count"]) == ("source.path", "7")
    assert arrived.message.startswith("No ")


@pytest.mark.parametrize(("retry_after", "attempts"), [(None, 1), (0.01, 3)])
async def test_a_client_tries_again_only_where_the_server_says_that_it_may(start, retry_after, attempts):
    calls = 0

    async def unavailable(context):
        nonlocal calls
        calls += 1
        raise errors.Unavailable("Not now.", reason="TEST", retry_after=retry_after)

    policy = {
        "maxAttempts": 3,
        "initialBackoff": "0.01s",
        "maxBackoff": "0.01s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    config = json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": policy}]})
    async with (
        start(unavailable) as running,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{running.daemon.port}", options=[("grpc.service_config", config)]
        ) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await inference_pb2_grpc.InferenceServiceStub(channel).GetServerInfo(EMPTY)
    assert calls == attempts
    assert errors.from_rpc_error(caught.value).reason == "TEST"
