"""One fuzzed call: what is sent, how it ends, and what it teaches. Calls can be written down and sent again."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from .laws import WRITTEN_LATE, broken_law, broken_status, parsed, reason_of, statuses

End = Literal["finish", "leave"]
ENDLESS = frozenset(
    {"WatchBuild", "WatchModels", "StreamStats", "StreamKvCacheEvents", "Watch", "WaitOperation", "GetStats"}
)
"""Calls that may rightly go on until the caller has enough."""


@dataclass(frozen=True)
class Call:
    """`method` is "/service/Method". `end`: "finish" half-closes and reads to the end; "leave" goes away once
    `most` responses came or `patience` seconds passed. `deadline`: of the RPC in seconds; 0: one beyond all patience.
    """

    daemon: str
    method: str
    messages: tuple[bytes, ...]
    end: End = "finish"
    most: int = 10_000
    patience: float = 60.0
    deadline: float = 0.0

    @property
    def descriptor(self) -> MethodDescriptor:
        _, service, name = self.method.split("/")
        return descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]

    def save(self, path: Path) -> None:
        """As JSON, for `python -m tests.fuzz.replay`."""
        fields = dataclasses.asdict(self) | {"messages": [base64.b64encode(m).decode() for m in self.messages]}
        path.write_text(json.dumps(fields))

    @classmethod
    def load(cls, path: Path) -> Call:
        fields = json.loads(path.read_text())
        return cls(**fields | {"messages": tuple(map(base64.b64decode, fields["messages"]))})


class Ended(NamedTuple):
    """How a call ended. `fault` is empty when all laws held; `left`: the caller ended it; `late`: it wrote after
    the server had ended it, so that gRPC does not tell how."""

    code: grpc.StatusCode
    reason: str
    responses: list[Any]
    seconds: float
    left: bool
    late: bool
    fault: str


async def perform(call: Call, channel: grpc.aio.Channel) -> Ended:
    """Sends a call and checks its end."""
    descriptor = call.descriptor
    arity = f"{'stream' if descriptor.client_streaming else 'unary'}_"
    arity += "stream" if descriptor.server_streaming else "unary"
    method = getattr(channel, arity)(call.method)  # no serializers: bytes in, bytes out
    began, responses, left = time.monotonic(), [], False
    gone = asyncio.Event()
    given: Any = _sent(call, gone) if descriptor.client_streaming else call.messages[0]
    rpc = method(given, timeout=call.deadline or call.patience + 60)
    try:
        async with asyncio.timeout(call.patience):
            if descriptor.server_streaming:
                async for data in rpc:
                    responses.append(data)
                    if len(responses) >= call.most:
                        left = True
                        break
            else:
                responses.append(await rpc)
    except TimeoutError:
        left = True
    except grpc.RpcError:
        pass
    finally:
        rpc.cancel()
        gone.set()
    code = grpc.StatusCode.CANCELLED if left else await rpc.code()
    trailers = None if left else await rpc.trailing_metadata()
    details = "" if left else await rpc.details() or ""
    late = details == WRITTEN_LATE
    fault = "" if late else _fault(call, left, code, details, trailers)
    messages = [parsed(GetMessageClass(descriptor.output_type), data) for data in responses]
    for status in (status for message in messages if message is not None for status in statuses(message)):
        fault = fault or (broken_status(status) and f"in a response: {broken_status(status)}")
    return Ended(code, reason_of(trailers), messages, time.monotonic() - began, left, late, fault)


async def _sent(call: Call, gone: asyncio.Event) -> Any:
    for message in call.messages:
        yield message
        await asyncio.sleep(0)
    if call.end == "leave":
        await gone.wait()


def _fault(call: Call, left: bool, code: grpc.StatusCode, details: str, trailers: Any) -> str:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and call.deadline:
        return ""
    if not left:
        return broken_law(call.method, code, details, trailers)
    if call.end == "leave" or call.descriptor.name in ENDLESS:
        return ""
    return f"hangs: no end within {call.patience:g} s"
