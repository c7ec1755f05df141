"""The events of one request: pushed by the stream's thread, taken by whoever waits, in sync code or any event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterable

from enginehouse._gen.enginehouse.inference.v1 import inference_pb2
from enginehouse.errors import EnginehouseError

Item = inference_pb2.Event | EnginehouseError


class Inbox:
    """A queue without polling. `push` and `wake_waiters` belong to the stream's thread; the rest to any thread."""

    __slots__ = ("_closed", "_events", "_futures", "_items", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[Item] = deque()
        self._events: list[threading.Event] = []
        self._futures: list[asyncio.Future[None]] = []
        self._closed = False

    def push(self, item: Item, *, last: bool = False) -> None:
        """Adds an item. Nobody wakes before `wake_waiters`, so that a message of many events costs one wake."""
        self._items.append(item)
        if last:
            self._closed = True

    def take(self) -> list[Item]:
        """Removes and returns what is there."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._items.popleft())
        return taken

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until something is there or will never come. False: the timeout (seconds) passed."""
        event = threading.Event()
        with self._lock:
            if self._ready():
                return True
            self._events.append(event)
        if event.wait(timeout):
            return True
        with self._lock:
            if event in self._events:
                self._events.remove(event)
            return self._ready()

    async def wait_async(self) -> None:
        """`wait` for the running event loop."""
        with self._lock:
            if self._ready():
                return
            future = asyncio.get_running_loop().create_future()
            self._futures.append(future)
        await future

    def _ready(self) -> bool:
        # After the last item every wait returns: another thread may hold what was taken.
        return self._closed or bool(self._items)

    def _pop_waiters(self) -> tuple[list[threading.Event], list[asyncio.Future[None]]]:
        with self._lock:
            events, futures = self._events, self._futures
            if events or futures:
                self._events, self._futures = [], []
            return events, futures


def wake_waiters(inboxes: Iterable[Inbox]) -> None:
    """Wakes all who wait for these inboxes, with one wake for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for inbox in inboxes:
        events, futures = inbox._pop_waiters()
        for event in events:
            event.set()
        for future in futures:
            by_loop.setdefault(future.get_loop(), []).append(future)
    for loop, futures in by_loop.items():
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():  # a waiter that was cancelled
            future.set_result(None)
