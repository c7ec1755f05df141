"""The builder daemon. `main(settings)` is what the command line calls:

    from builder_service.daemon import BuilderSettings, main
    main(BuilderSettings(store=Path("/engines"), state=Path("/var/lib/enginehouse"), roots=(Path("/models"),),
                         server=ServerSettings(port=50051)))

`main(settings: BuilderSettings) -> None` serves until SIGTERM or SIGINT. It raises an EnginehouseError, whose message
says what to do, when it cannot start. The caller sets the logs up (service_kit.logs.setup).
"""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from google.longrunning import operations_pb2_grpc

from builder_service.api.operations import BuilderOperations
from builder_service.api.requests import Site
from builder_service.api.servicer import BuilderServicer
from builder_service.api.validator import Validator
from builder_service.collector import Collector
from builder_service.queue.jobs import HISTORY_SECONDS, JobStore
from builder_service.queue.process import ChildSettings
from builder_service.queue.supervisor import Supervisor
from engine_store import EngineStore
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2_grpc
from enginehouse.errors import FailedPrecondition, InvalidArgument
from service_kit import logs
from service_kit.directories import usable_directory
from service_kit.operations import OperationsServicer
from service_kit.server import Daemon, ServerSettings, run

log = logs.logger("builder")


@dataclass(frozen=True, kw_only=True)
class BuilderSettings:
    """How a builder runs.

    `store`: the engine store, shared with the servers. `state`: the builder's own directory on local disk (queue,
    downloads). `roots`: checkpoints are read under these only. `offline`: never ask the hub. `child`: the build's
    process and its memory limit. `max_concurrent_builds`, `max_queued_builds`: counts. `memory_budget`: bytes that
    running builds are estimated to need together (0: no bound); one build always runs. `store_quota_bytes`: above it
    the versions that were used longest ago are deleted (0: no quota). `max_history`, `history_seconds`: how many ended
    builds are remembered, and how long.
    """

    store: Path
    state: Path
    roots: tuple[Path, ...] = ()
    server: ServerSettings = field(default_factory=lambda: ServerSettings(port=50051))
    child: ChildSettings = field(default_factory=ChildSettings)
    max_concurrent_builds: int = 1
    max_queued_builds: int = 100
    memory_budget: int = 0
    store_quota_bytes: int = 0
    max_history: int = 1000
    history_seconds: float = HISTORY_SECONDS
    offline: bool = False

    def __post_init__(self) -> None:
        if self.max_concurrent_builds < 1 or self.max_queued_builds < 1:
            raise InvalidArgument("A builder needs room for one build at least; raise the count.")
        if min(self.memory_budget, self.store_quota_bytes, self.max_history, self.history_seconds) < 0:
            raise InvalidArgument("A builder's budgets, quotas and history are 0 or more.")
        for root in self.roots:
            if not root.is_dir():
                raise InvalidArgument(
                    f"The checkpoint root {root} is no directory; create it or give another.",
                    reason="ROOT_NOT_FOUND",
                    metadata={"root": root},
                )


def main(settings: BuilderSettings) -> None:
    """Serves until SIGTERM or SIGINT: then no new builds, running ones are queued for the next start."""
    # Not uvloop, which forks: gRPC's fork handlers kill some children before they start. asyncio's own loop uses vfork.
    asyncio.run(serve(settings))


async def serve(settings: BuilderSettings) -> None:
    """The same inside a running event loop."""
    with only_builder(settings.state):
        await run(settings.server, lambda daemon: register(daemon, settings))


async def register(daemon: Daemon, settings: BuilderSettings) -> None:
    """Puts the builder onto a server that is about to start, and says SERVING once its queue is open."""
    store = EngineStore(usable_directory(settings.store, "store"), quota_bytes=settings.store_quota_bytes)
    jobs = JobStore(
        usable_directory(settings.state, "state") / "builds.sqlite",
        max_queued=settings.max_queued_builds,
        max_done=settings.max_history,
        history_seconds=settings.history_seconds,
    )
    supervisor = Supervisor(jobs, store, settings.child, settings.max_concurrent_builds, settings.memory_budget)
    operations = BuilderOperations(supervisor, store, daemon.draining)
    site = Site(
        store=settings.store.absolute(),
        cache=usable_directory(settings.state / "cache", "cache"),
        roots=tuple(root.absolute() for root in settings.roots),
        offline=settings.offline,
        store_quota_bytes=settings.store_quota_bytes,
    )
    validator, collector = Validator(settings.child), Collector(store)
    daemon.add(
        builder_pb2_grpc.add_BuilderServiceServicer_to_server,
        BuilderServicer(supervisor, store, operations, validator, collector, site, daemon.draining),
    )
    daemon.add(operations_pb2_grpc.add_OperationsServicer_to_server, OperationsServicer(operations))
    await supervisor.recover()
    daemon.on_start(supervisor.start)
    collecting = asyncio.create_task(collector.run(), name="collector")
    _end_with(daemon, supervisor, operations, collecting, jobs)
    await daemon.health.set_serving()
    log.info(
        "builder ready",
        store=str(settings.store),
        roots=[str(root) for root in settings.roots],
        queued=jobs.unfinished(),
    )


def _end_with(
    daemon: Daemon,
    supervisor: Supervisor,
    operations: BuilderOperations,
    collecting: asyncio.Task[None],
    jobs: JobStore,
) -> None:
    """Running builds are put back at the end's beginning: they could outlast any grace."""

    async def close() -> None:
        await supervisor.close()  # for a start that failed after this: nothing was drained
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        await operations.checks.close()
        jobs.close()

    daemon.on_drain(supervisor.close)
    daemon.on_stop(close)


@contextmanager
def only_builder(state: Path) -> Iterator[None]:
    """Holds the state directory: two builders on one queue would run each build twice."""
    with (usable_directory(state, "state") / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FailedPrecondition(
                f"Another builder uses the state directory {state}; stop it, or give this one its own.",
                reason="STATE_IN_USE",
                metadata={"state": state},
            ) from None
        yield
