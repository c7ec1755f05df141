"""A supervisor over real SQLite, a real store and scripted children, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from builder_service.estimate import Estimate
from builder_service.job import BuildJob, SourceSpec, Stage
from builder_service.queue.events import Finished, Log
from builder_service.queue.jobs import JobStore
from builder_service.queue.process import ChildSettings
from builder_service.queue.supervisor import Supervisor
from engine_store import EngineStore

SCRIPTED = (sys.executable, str(Path(__file__).with_name("scripted_child.py")))
SETTINGS = ChildSettings(command=SCRIPTED, memory_limit=150 << 20)
_numbers = itertools.count()


class Bench:
    """The daemon's inside under one directory. Children do what the label `do` says."""

    def __init__(
        self, root: Path, settings: ChildSettings = SETTINGS, *, store: EngineStore | None = None, **limits: int
    ) -> None:
        self.root = root
        self.store = store or EngineStore(root / "store")
        self.jobs = JobStore(root / "builds.sqlite")
        self.supervisor = Supervisor(self.jobs, self.store, settings, **limits)

    def submit(self, do: str = "publish", source: str = "", memory: int | None = None, **fields: Any) -> str:
        """Asks for a build, which is identical to others only where its `source` is."""
        estimate = None if memory is None else Estimate(memory, 0, 10.0)
        labels = {"do": do, **fields.pop("labels", {})}
        priority = fields.pop("priority", 0.5)
        spec = BuildJob(
            **{
                "engine_id": "tiny",
                "store": str(self.store.root),
                "cache": str(self.root),
                "source": SourceSpec(kind="huggingface", path=f"/{source or next(_numbers)}"),
                "labels": labels,
                **fields,
            }
        )
        return self.supervisor.submit(spec, b"", priority=priority, estimate=estimate).operation

    def go(self) -> None:
        """Lets held children go on."""
        (self.root / "go").touch()

    async def until(self, operation: str, happened: Callable[[], bool]) -> None:
        """Looks at each change of the build."""
        async with asyncio.timeout(20):
            while not happened():
                changed = self.supervisor.changes.next(operation)
                if not happened():
                    await changed.wait()

    async def running(self, *operations: str) -> None:
        for operation in operations:
            await self.until(operation, lambda each=operation: self.stage(each) is Stage.CONVERTING)

    async def finish(self, operation: str) -> Finished:
        async with asyncio.timeout(20):
            await self.supervisor.until_done(operation)
        event = self.events(operation)[-1]
        assert isinstance(event, Finished)
        return event

    def stage(self, operation: str) -> Stage:
        return self.jobs.get(operation).state.stage

    def leader(self, operation: str) -> str:
        return self.supervisor.leader(self.jobs.get(operation))

    def events(self, operation: str) -> list[Any]:
        return [stored.event for stored in self.jobs.events_after(operation, 0, 20_000)]

    def texts(self, operation: str) -> list[str]:
        return [event.text for event in self.events(operation) if isinstance(event, Log)]

    def staged(self) -> list[str]:
        path = self.root / "store" / "staging"
        return os.listdir(path) if path.exists() else []


@contextlib.asynccontextmanager
async def working(root: Path, settings: ChildSettings = SETTINGS, **options: Any) -> AsyncIterator[Bench]:
    """A bench that recovered and works; closed at the end."""
    bench = Bench(root, settings, **options)
    try:
        await bench.supervisor.recover()
        await bench.supervisor.start()
        yield bench
    finally:
        await bench.supervisor.close()
        bench.jobs.close()
