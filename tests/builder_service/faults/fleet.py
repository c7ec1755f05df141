"""Builder daemons as real processes that are killed and started again, and what must hold whatever happened."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.longrunning import operations_pb2, operations_pb2_grpc

from builder_service.job import Stage
from engine_store import EngineStore
from enginehouse._calls import Calls
from enginehouse._gen.enginehouse.builder.v1 import build_config_pb2 as config_pb
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2_grpc, engine_pb2
from enginehouse.build import BuildHandle
from enginehouse.connection import Endpoint
from enginehouse.engine_types import BuildEvent, BuildFinished, EngineVersion
from enginehouse.errors import EnginehouseError, Unavailable
from tests.builder_service.faults.halts import VARIABLE, Halts
from tests.builder_service.serving import metadata

T = TypeVar("T")
HERE = Path(__file__).parent
FINAL = {Stage.SUCCEEDED, Stage.FAILED, Stage.CANCELLED}


@dataclass
class Builder:
    """A daemon that is started, killed and started again on one port. `child`: "scripted" or "real". `patience`: of
    its queue, in seconds; 0 for its own. The checkpoints lie beside the store."""

    root: Path
    child: str = "scripted"
    store: Path = field(default=Path())
    places: int = 1
    queued: int = 100
    patience: float = 0.0
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.store = self.root / "store" if self.store == Path() else self.store
        self.port = _free_port()
        self.halts = Halts(self.root / "halts")
        self.models = self.store.parent / "models"
        (self.models / "tiny").mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Returns once it answers."""
        self.launch()
        while not _answers(self.port):
            assert self.process is not None
            assert self.process.poll() is None, (self.root / "log").read_text()[-4000:]
            time.sleep(0.01)

    def launch(self) -> None:
        """Starts it and waits for nothing."""
        settings = {
            "store": str(self.store),
            "state": str(self.root / "state"),
            "roots": [str(self.models)],
            "port": self.port,
            "command": [sys.executable, str(HERE / "halting_child.py"), self.child],
            "places": self.places,
            "queued": self.queued,
            "patience": self.patience,
        }
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "halting_daemon.py"), json.dumps(settings)],
                stdout=log,
                stderr=log,
                env={**os.environ, VARIABLE: str(self.root / "halts")},
            )

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Sends the signal and waits for the end; the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)

    def staged(self) -> list[str]:
        """What lies in the store's staging."""
        staging = self.store / "staging"
        return os.listdir(staging) if staging.exists() else []

    @contextlib.contextmanager
    def running(self) -> Iterator[Builder]:
        """Started now, ended at the end if it still runs then."""
        self.start()
        try:
            yield self
        finally:
            if self.process is not None and self.process.poll() is None:
                self.kill(signal.SIGKILL)


class Follower:
    """Follows a build from its begin, through outages: `events` from a watch, `version` or `error` from a wait."""

    def __init__(self, calls: Calls, operation: operations_pb2.Operation) -> None:
        self.name = operation.name
        self.events: list[BuildEvent] = []
        self.version: EngineVersion | None = None
        self.error: EnginehouseError | None = None
        self._broken: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._safely, args=(part, BuildHandle(calls, operation)), daemon=True)
            for part in (self._watch, self._wait)
        ]
        for thread in self._threads:
            thread.start()

    def done(self, seconds: float = 60.0) -> Follower:
        """Waits for the watch and the wait to end, then checks what they saw."""
        for thread in self._threads:
            thread.join(seconds)
            assert not thread.is_alive(), f"{self.name}: its watch or wait never returned; saw {self.events[-3:]}"
        assert not self._broken, f"{self.name}: {self._broken!r}"
        assert [event.sequence for event in self.events] == list(range(1, len(self.events) + 1)), self.name
        assert [isinstance(event.detail, BuildFinished) for event in self.events].count(True) == 1
        assert self.finished.stage in FINAL
        assert (self.version is not None) == (self.finished.stage == Stage.SUCCEEDED), (self.version, self.error)
        return self

    @property
    def finished(self) -> BuildFinished:
        detail = self.events[-1].detail
        assert isinstance(detail, BuildFinished), f"{self.name}: the last event is {detail}"
        return detail

    def _safely(self, run: Callable[[BuildHandle], None], handle: BuildHandle) -> None:
        try:
            run(handle)
        except BaseException as error:
            self._broken.append(error)

    def _watch(self, handle: BuildHandle) -> None:
        while not (self.events and isinstance(self.events[-1].detail, BuildFinished)):
            with contextlib.suppress(Unavailable):  # the client gave up: more than its 8 attempts met an outage
                for event in handle.watch(self.events[-1].sequence if self.events else 0):
                    self.events.append(event)

    def _wait(self, handle: BuildHandle) -> None:
        while self.version is self.error is None:
            with contextlib.suppress(Unavailable):
                try:
                    self.version = handle.result()
                except Unavailable:
                    raise
                except EnginehouseError as error:
                    self.error = error


@dataclass
class Submission:
    """A build that was acknowledged, and the request for it."""

    request: pb.BuildEngineRequest
    follower: Follower


class Campaign:
    """Builds on one daemon and its successors, and the laws that must hold at the end."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.submissions: list[Submission] = []
        target = f"127.0.0.1:{builder.port}"
        self._calls = Calls(Endpoint(target=target, daemon="builder"), 30.0)
        # of its own, so that the followers' attempts during an outage do not slow this one's return
        backoff = {"initial": 50, "min": 50, "max": 200}
        options = [(f"grpc.{name}_reconnect_backoff_ms", value) for name, value in backoff.items()]
        options.append(("grpc.use_local_subchannel_pool", 1))
        channel = grpc.insecure_channel(target, options)
        self._stub = builder_pb2_grpc.BuilderServiceStub(channel)
        self._operations = operations_pb2_grpc.OperationsStub(channel)

    def request(self, engine: str, **fields: Any) -> pb.BuildEngineRequest:
        source = pb.CheckpointSource(path=str(self.builder.models / "tiny"))
        names = {"engine_id": engine, "source": source, "request_id": str(uuid.uuid4())}
        return pb.BuildEngineRequest(**{**names, **fields})

    def submit(self, engine: str, **fields: Any) -> Follower:
        """Asks for a build until the daemon has acknowledged it, and follows it."""
        request = self.request(engine, **fields)
        follower = Follower(self._calls, self.ask(request))
        self.submissions.append(Submission(request, follower))
        return follower

    def ask(self, request: pb.BuildEngineRequest) -> operations_pb2.Operation:
        return retried(lambda: self._stub.BuildEngine(request, timeout=30))

    def wait(self, name: str, seconds: float = 60.0) -> operations_pb2.Operation:
        """Waits for the end of a build, through outages."""
        request, deadline = operations_pb2.WaitOperationRequest(name=name), time.monotonic() + seconds
        request.timeout.FromSeconds(20)
        while True:
            operation = retried(lambda: self._operations.WaitOperation(request, timeout=40))
            if operation.done:
                return operation
            assert time.monotonic() < deadline, f"{name} does not end: {metadata(operation)}"

    def status(self, name: str) -> pb.BuildMetadata:
        return metadata(self._operations.GetOperation(operations_pb2.GetOperationRequest(name=name), timeout=30))

    def cancel(self, name: str) -> None:
        request = operations_pb2.CancelOperationRequest(name=name)
        retried(lambda: self._operations.CancelOperation(request, timeout=30))

    def store(self) -> EngineStore:
        return EngineStore(self.builder.store)

    def check(self) -> None:
        """The laws. The daemon runs."""
        for each in self.submissions:
            self.wait(each.follower.name)
        for each in self.submissions:
            each.follower.done()
            assert self.ask(each.request).name == each.follower.name, "another build for the same request_id"
        self._check_store()
        self._check_processes()

    def _check_store(self) -> None:
        """Whole versions only, nothing staged, and each build's version and alias are there."""
        store, there = self.store(), set()
        for engine in store.list_engines():
            for version in store.version_numbers(engine):
                assert store.inspect(engine, version) == []
                there.add((engine, version))
        folders = {(path.parts[-3], int(path.name)) for path in self.builder.store.glob("engines/*/versions/*")}
        assert folders == there
        assert self.builder.staged() == []
        for each in self.submissions:
            if (version := each.follower.version) is not None:
                assert (version.engine, version.number) in there, f"{version.name} is not in the store"
                if alias := each.request.alias:
                    assert store.get_alias(version.engine, alias).version in store.version_numbers(version.engine)

    def _check_processes(self) -> None:
        alive = [pid for pid in {row.pid for row in self.builder.halts.passed()} if _is_child(pid)]
        assert not alive, f"orphans: {alive}"


def retried(call: Callable[[], T], seconds: float = 60.0) -> T:
    """The call's answer; a daemon that is away is waited for."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            # CANCELLED: the call came in a server's last moment
            away = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            if not away or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def version(operation: operations_pb2.Operation) -> str:
    """The name of the version that a build made or found."""
    found = engine_pb2.EngineVersion()
    assert operation.response.Unpack(found), operation.error
    return found.name


def variant(number: int) -> config_pb.BuildConfig:
    """A configuration with a build key of its own."""
    return config_pb.BuildConfig(max_batch_size=number + 1)


def end(pid: int) -> None:
    """kill -9; a process that is gone is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are there."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _is_child(pid: int) -> bool:
    """Whether a build's process lives under this PID, which a process of these tests had."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" and b"halting_daemon" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
