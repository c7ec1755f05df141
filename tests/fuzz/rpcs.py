"""Fuzzes every method of both daemons for so many seconds, and watches the daemons meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pool

from enginehouse._gen.enginehouse.inference.v1 import inference_pb2

from . import canary, keeper
from .calls import ENDLESS, Call, Ended, perform
from .daemons import Home, Process, Usage
from .laws import parsed
from .messages import MessageMaker, Words
from .vocabulary import builder_words, inference_words, learn

WORKERS = 6
RSS_BOUNDS = {"builder": 300 << 20, "inference": 700 << 20}
"""Bytes that a daemon's own memory may grow by, from after the warm-up to any later moment. The inference server holds
two encodings of 1 MiB of text at a time, each of a few hundred bytes for each character."""
FDS_SLACK, THREADS_SLACK = 12, 12
"""What may remain at the end beyond the start: pools of threads that grew to their bound, kept connections."""
SETTLE_SECONDS = 25.0
GRACE_SECONDS = 3.0
"""For the calls that are on their way at the end."""
ENOUGH_FAULTS = 25
VALIDATION_SECONDS = 240.0
"""A check of a build may wait for the checks before it, each of which starts a process."""
HEAVY = {"BuildEngine": 2, "Generate": 8, "LoadModel": 2, "ListOperations": 2}
"""Methods that are called more often than others."""


class Fault(NamedTuple):
    """A broken law, and where the call that broke it is written."""

    method: str
    what: str
    saved: str


@dataclass
class Report:
    """What was done and seen."""

    calls: Counter[str] = field(default_factory=Counter)
    good: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    canaries: int = 0
    start: dict[str, Usage] = field(default_factory=dict)
    peak_rss: Counter[str] = field(default_factory=Counter)
    end: dict[str, Usage] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For a person, and for quoting."""
        ends = ", ".join(f"{name} {count}" for name, count in self.ends.most_common())
        slow = sorted(self.slowest.items(), key=lambda item: -item[1])[:5]
        methods = ", ".join(
            f"{name.rpartition('/')[2]} {self.good[name]}/{count}" for name, count in sorted(self.calls.items())
        )
        grown = {name: (self.peak_rss[name] - usage.rss) >> 20 for name, usage in self.start.items()}
        return [
            f"fuzz of RPCs: {sum(self.calls.values())} calls of {len(self.calls)} methods, {len(self.faults)} faults",
            f"  OK of calls: {methods}",
            f"  ends: {ends}",
            f"  slowest: {', '.join(f'{name} {seconds:.2f} s' for name, seconds in slow)}",
            f"  canary answers: {self.canaries}, all equal; RSS growth at most (MiB): {grown}",
            f"  start: {self.start}",
            f"  end:   {self.end}",
            *(f"  FAULT {fault.method}: {fault.what}\n    {fault.saved}" for fault in self.faults),
        ]


class Fuzzer:
    """One run. `folder` gets the calls that break a law."""

    def __init__(self, seed: int, home: Home, processes: dict[str, Process], folder: Path) -> None:
        self.report = Report()
        self._seed, self._home, self._processes, self._folder = seed, home, processes, folder
        self._words = {"builder": builder_words(home), "inference": inference_words()}
        self._methods: list[tuple[str, str]] = []
        self._numbers = itertools.count()
        self._recent: dict[str, deque[Call]] = {name: deque(maxlen=40) for name in processes}
        self._seen: set[str] = set()
        self._stop = asyncio.Event()
        self._later: set[asyncio.Task[None]] = set()

    async def run(self, methods: dict[str, list[str]], seconds: float) -> Report:
        """Calls each daemon's methods ("/service/Method")."""
        self._methods = [(daemon, method) for daemon, known in methods.items() for method in known]
        async with self._channels() as channels:
            expected = await canary.ask(channels)
            for daemon, method in self._methods:
                await self._once(daemon, method, channels[daemon])
            self.report.start = await self._settled(channels)
            self.report.peak_rss.update({name: usage.rss for name, usage in self.report.start.items()})
            helpers = [
                asyncio.create_task(self._ask_canary(channels, expected)),
                asyncio.create_task(self._measure()),
                asyncio.create_task(keeper.keep(self._home, channels, random.Random(f"{self._seed}/damage"))),
            ]
            workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds)
            self._stop.set()
            _, late = await asyncio.wait(workers, timeout=GRACE_SECONDS)
            for task in (*late, *helpers):
                task.cancel()
            for result in await asyncio.gather(*workers, *helpers, *self._later, return_exceptions=True):
                if isinstance(result, Exception):
                    self._fault(None, "a client that sends nothing bad", f"failed: {result!r}")
            if all(process.alive() for process in self._processes.values()):
                await self._finish(channels, expected)
        return self.report

    async def _finish(self, channels: dict[str, grpc.aio.Channel], expected: canary.Answer) -> None:
        self.report.end = await self._settled(channels, self.report.start)
        if (answer := await canary.ask(channels)) != expected:
            self._fault(None, "canary", f"changed at the end: {answer}")
        if live := await canary.live_requests(channels["inference"]):
            self._fault(None, "inference", f"{live} requests live on though every client is gone")
        for name, usage in self.report.end.items():
            start = self.report.start[name]
            if not came_back(start, usage):
                self._fault(None, name, f"does not come back: {start}, then {usage}: {self._processes[name].files()}")

    @contextlib.asynccontextmanager
    async def _channels(self) -> AsyncIterator[dict[str, grpc.aio.Channel]]:
        channels = {name: connect(process) for name, process in self._processes.items()}
        yield channels
        for channel in channels.values():
            await channel.close()

    async def _work(self) -> None:
        """One client of each daemon; reconnects now and then."""
        async with self._channels() as channels:
            while not self._stop.is_set():
                number = next(self._numbers)
                dice = random.Random(f"{self._seed}/{number}")
                weights = [HEAVY.get(method.rpartition("/")[2], 1) for _, method in self._methods]
                daemon, method = dice.choices(self._methods, weights)[0]
                await self._once(daemon, method, channels[daemon], dice)
                if dice.random() < 0.01:
                    old = channels[daemon]
                    channels[daemon] = connect(self._processes[daemon])
                    await old.close()

    async def _once(
        self, daemon: str, method: str, channel: grpc.aio.Channel, dice: random.Random | None = None
    ) -> None:
        """Without `dice` a plausible call, that is awaited."""
        call = make_call(daemon, method, self._words[daemon], dice)
        self._recent[daemon].append(call)
        ended = await perform(call, channel)
        name = method.rpartition("/")[2]
        self.report.calls[method] += 1
        self.report.good[method] += ended.code is grpc.StatusCode.OK
        self.report.ends["left" if ended.left else "written late" if ended.late else ended.code.name] += 1
        if not ended.left:
            self.report.slowest[name] = max(self.report.slowest.get(name, 0.0), ended.seconds)
        if fault := ended.fault or broken_stream(call, ended):
            self._fault(call, method, fault)
        for message in ended.responses[:3]:
            if message is not None:
                learn(self._words[daemon], message)
                if name == "BuildEngine" and not message.done:
                    self._start_later(self._cancel(message.name, (dice or random).uniform(0, 8)))

    def _start_later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _cancel(self, operation: str, seconds: float) -> None:
        """Builds are ended early, most of them, so that the machine has time for others."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
        async with connect(self._processes["builder"]) as channel:
            await keeper.cancel(operation, channel)

    async def _ask_canary(self, channels: dict[str, grpc.aio.Channel], expected: canary.Answer) -> None:
        while True:
            if (answer := await canary.ask(channels)) != expected:
                self._fault(None, "canary", f"changed: {answer}, expected {expected}")
            self.report.canaries += 1
            await asyncio.sleep(2)

    async def _measure(self) -> None:
        while True:
            for name, process in self._processes.items():
                if not process.alive():
                    self._fault(None, name, f"died with {process.child.returncode}: {process.log.read_text()[-3000:]}")
                    self._stop.set()
                    return
                rss = process.usage().rss
                self.report.peak_rss[name] = max(self.report.peak_rss[name], rss)
                if rss > self.report.start[name].rss + RSS_BOUNDS[name]:
                    self._fault(None, name, f"holds {rss >> 20} MiB, {self.report.start[name].rss >> 20} at the start")
                    self._stop.set()
                    return
            await asyncio.sleep(0.5)

    async def _settled(
        self, channels: dict[str, grpc.aio.Channel], start: dict[str, Usage] | None = None
    ) -> dict[str, Usage]:
        """What the daemons hold once nothing runs; `start`: what they held then."""
        await keeper.tidy(self._home, channels)
        until = asyncio.get_running_loop().time() + SETTLE_SECONDS
        while True:
            usage = {name: process.usage() for name, process in self._processes.items()}
            settled = all(came_back((start or usage)[name], each) for name, each in usage.items())
            if settled or asyncio.get_running_loop().time() > until:
                return usage
            await asyncio.sleep(0.2)

    def _fault(self, call: Call | None, method: str, what: str) -> None:
        """Keeps a fault, each sort once."""
        sort = f"{method} {re.sub('[0-9]+|[0-9a-f]{8,}', '#', what)[:150]}"
        if sort in self._seen:
            return
        self._seen.add(sort)
        path = self._folder / f"fault-{len(self.report.faults)}"
        calls = [call] if call is not None else [each for recent in self._recent.values() for each in recent]
        for number, each in enumerate(calls):
            each.save(path.with_suffix(f".{number}.json"))
        saved = f"replay: python -m tests.fuzz.replay {path}.*.json"
        self.report.faults.append(Fault(method, what, saved))
        if len(self.report.faults) >= ENOUGH_FAULTS:
            self._stop.set()


def came_back(start: Usage, usage: Usage) -> bool:
    """Whether a daemon holds no more than at the start, but for memory."""
    return not usage.children and usage.fds <= start.fds + FDS_SLACK and usage.threads <= start.threads + THREADS_SLACK


def connect(process: Process) -> grpc.aio.Channel:
    """A connection of its own, that takes answers of any length."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(process.address, options=options)


def make_call(daemon: str, method: str, words: Words, dice: random.Random | None) -> Call:
    """A call of a method; without `dice` a plausible one."""
    patient = dice is None
    dice = dice or random.Random(method)
    _, service, name = method.split("/")
    descriptor = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    maker = MessageMaker(dice, words)
    count = dice.choice((0, 1, 1, 2, 5, 20)) if descriptor.client_streaming else 1
    if patient:
        messages = tuple(maker.plausible(descriptor.input_type).SerializeToString() for _ in range(count))
    else:
        messages = tuple(maker.encoded(descriptor.input_type) for _ in range(count))
    if name in ENDLESS:
        return Call(daemon, method, messages, "leave", dice.choice((1, 3, 50)), dice.choice((0.05, 0.2, 0.5)))
    if not patient and dice.random() < (0.7 if name == "BuildEngine" else 0.12):
        return Call(daemon, method, messages, "leave", dice.choice((1, 2, 50)), dice.choice((0.0, 0.01, 0.05, 0.5)))
    if not patient and dice.random() < 0.08:
        return Call(daemon, method, messages, deadline=dice.choice((0.001, 0.02, 0.1, 0.5)))
    return Call(daemon, method, messages, patience=VALIDATION_SECONDS if name == "BuildEngine" else 60.0)


def broken_stream(call: Call, ended: Ended) -> str:
    """Law 1 of the wire: on a Generate stream that ended well, each start had exactly one last event."""
    if not call.method.endswith("/Generate") or ended.left or ended.code is not grpc.StatusCode.OK:
        return ""
    sent = [parsed(inference_pb2.GenerateRequest, data) for data in call.messages]
    started = Counter(message.start.request_id for message in sent if message and message.HasField("start"))
    events = [event for response in ended.responses if response is not None for event in response.events]
    last = Counter(event.request_id for event in events if event.WhichOneof("event") in ("done", "error"))
    return "" if started == last else f"started {started!r:.200}, ended {last!r:.200}"
