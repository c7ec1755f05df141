"""google.longrunning.Operations of the builder: builds from SQLite, checks of versions from memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from google.longrunning import operations_pb2

from builder_service.api import convert_proto
from builder_service.api.convert_proto import Live
from builder_service.job import Stage
from builder_service.queue.jobs import JobStore
from builder_service.queue.state import Job
from builder_service.queue.supervisor import Supervisor
from engine_store import EngineStore
from enginehouse._gen.enginehouse.builder.v1 import engine_pb2
from enginehouse.errors import NotFound
from service_kit.operations import COLLECTION, InMemoryOperations
from service_kit.pagination import MAX_SIZE, Page, Paged, bad_token, encode


class BuilderOperations:
    """The `OperationStore` of this daemon. Names that the queue does not know are looked for among the checks.

    Args:
        draining: set when the daemon ends; waits return early then.
    """

    def __init__(self, supervisor: Supervisor, store: EngineStore, draining: asyncio.Event) -> None:
        self._supervisor, self._store, self._draining = supervisor, store, draining
        self.checks = InMemoryOperations()

    async def encode(self, job: Job) -> operations_pb2.Operation:
        """A build as an operation, with its version where it has one."""
        jobs, leader = self._supervisor.jobs, self._supervisor.leader(job)
        position = 1 if leader and not job.state.done else jobs.queue_position(job)
        return convert_proto.operation(job, Live(position, leader, jobs.clock()), await self.version_of(job))

    async def version_of(self, job: Job) -> engine_pb2.EngineVersion | None:
        """The version that a build made, with its aliases; None when it made none, or it was deleted since."""
        if job.state.stage is not Stage.SUCCEEDED:
            return None
        with contextlib.suppress(NotFound):
            return await asyncio.to_thread(self._version, job.spec.engine_id, job.state.version)
        return None

    def _version(self, engine: str, number: int) -> engine_pb2.EngineVersion:
        return convert_proto.engine_version(self._store.get(engine, number), self._store.list_aliases(engine))

    async def get(self, name: str) -> operations_pb2.Operation:
        if (job := self._job(name)) is None:
            return await self.checks.get(name)
        return await self.encode(job)

    async def list(self, page: Page) -> Paged[operations_pb2.Operation]:
        """Builds, the newest first, then checks. Only the page's own builds are read."""
        builds = [(f"b{job.id:019d}", job) for job in _builds(self._supervisor.jobs, page)]
        found = (await self.checks.list(Page(MAX_SIZE, None))).items
        checks = [(f"a{each.name}", each) for each in sorted(found, key=lambda each: each.name, reverse=True)]
        past = [entry for entry in checks if page.after is None or entry[0] < str(page.after)]
        entries: list[tuple[str, Job | operations_pb2.Operation]] = [*builds, *past]
        shown = entries[: page.size]
        token = encode(shown[-1][0], COLLECTION) if len(entries) > page.size else ""
        return Paged([await self.encode(each) if isinstance(each, Job) else each for _, each in shown], token)

    async def cancel(self, name: str) -> None:
        if self._job(name) is None:
            await self.checks.cancel(name)
        else:
            await self._supervisor.cancel(name)

    async def delete(self, name: str) -> None:
        if self._job(name) is None:
            await self.checks.delete(name)
        else:
            self._supervisor.jobs.delete(name)

    async def wait(self, name: str, seconds: float) -> operations_pb2.Operation:
        until = self._supervisor.until_done if self._job(name) else self._check_done
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await first(until(name), self._draining.wait())
        return await self.get(name)

    async def _check_done(self, name: str) -> None:
        while not (await self.checks.wait(name, 60.0)).done:
            pass

    def _job(self, name: str) -> Job | None:
        with contextlib.suppress(NotFound):
            return self._supervisor.jobs.get(name)
        return None


def _builds(jobs: JobStore, page: Page) -> list[Job]:
    """The builds of a page, and one more where there is one."""
    if page.after is None:
        return jobs.page(page.size + 1)
    kind, number = str(page.after)[:1], str(page.after)[1:]
    if kind == "b" and number.isdecimal() and len(number) == 19:
        return jobs.page(page.size + 1, int(number))
    if kind == "a":
        return []
    raise bad_token()


async def first(*waits: Coroutine[Any, Any, object]) -> None:
    """Returns once any of them has ended; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
