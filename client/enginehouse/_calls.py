"""Blocking calls to a daemon, and waiting for its long-running operations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from google.longrunning import operations_pb2, operations_pb2_grpc

from enginehouse.connection import Endpoint
from enginehouse.errors import Unavailable

WAIT_SLICE_S = 20.0
LOST_ATTEMPTS = 8


class Calls:
    """A channel and its timeout (seconds); the one place where blocking calls are made."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self.endpoint, self.timeout = endpoint, timeout
        self.channel = endpoint.channel()
        self.operations = operations_pb2_grpc.OperationsStub(self.channel)

    def unary(self, method: Callable[..., Any], request: Any, timeout: float | None = None) -> Any:
        """The response. Raises EnginehouseError."""
        with self.endpoint.errors():
            return method(request, timeout=timeout or self.timeout, metadata=self.endpoint.metadata)

    def pages(self, method: Callable[..., Any], request: Any) -> Iterator[Any]:
        """All pages of a list call."""
        while True:
            page = self.unary(method, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token


def wait_operation(
    calls: Calls, operation: operations_pb2.Operation, timeout: float | None = None
) -> operations_pb2.Operation:
    """Waits until the operation is done and returns it; a daemon that restarts meanwhile is waited for.

    Raises:
        TimeoutError: `timeout` seconds passed; the operation goes on.
        EnginehouseError: the daemon cannot be asked.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    lost = 0
    while not operation.done:
        remaining = WAIT_SLICE_S if deadline is None else min(WAIT_SLICE_S, deadline - time.monotonic())
        if remaining <= 0:
            raise TimeoutError(f"{operation.name} did not end in {timeout} s; it goes on")
        request = operations_pb2.WaitOperationRequest(name=operation.name)
        request.timeout.FromMilliseconds(int(remaining * 1000))
        try:
            operation, lost = calls.unary(calls.operations.WaitOperation, request, remaining + 10), 0
        except Unavailable:
            lost += 1
            if lost > LOST_ATTEMPTS:
                raise
            time.sleep(min(0.2 * 2**lost, 5.0, remaining))
    return operation
