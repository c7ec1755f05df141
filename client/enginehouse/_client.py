"""What the clients of both daemons share."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from enginehouse._calls import Calls
from enginehouse.connection import Endpoint


class DaemonClient:
    """A connection to one daemon, closed with `close` or at the end of a `with`."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._calls = Calls(endpoint, timeout)

    def close(self) -> None:
        """Closes the connection. What the daemon does goes on."""
        self._calls.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
