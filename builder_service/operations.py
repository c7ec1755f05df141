"""google.longrunning.Operations of the builder: builds from SQLite, checks of versions from memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from google.longrunning import operations_pb2

from builder_service import convert_proto
from builder_service.estimate import estimate
from builder_service.job import Stage
from builder_service.jobs import Job
from builder_service.supervisor import Supervisor
from engine_store import EngineStore, Manifest
from enginehouse.errors import NotFound
from service_kit.operations import COLLECTION, InMemoryOperations
from service_kit.pagination import MAX_SIZE, Page, Paged, paginate


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
        position = self._supervisor.jobs.queue_position(job)
        needs = await asyncio.to_thread(estimate, job.spec)
        return convert_proto.operation(job, position, needs, await self.version_of(job))

    async def version_of(self, job: Job) -> Manifest | None:
        """The manifest that a build made; None when it made none, or it was deleted since."""
        if job.state.stage is not Stage.SUCCEEDED:
            return None
        with contextlib.suppress(NotFound):
            return await asyncio.to_thread(self._store.get, job.spec.engine_id, job.state.version)
        return None

    async def get(self, name: str) -> operations_pb2.Operation:
        if (job := self._job(name)) is None:
            return await self.checks.get(name)
        return await self.encode(job)

    async def list(self, page: Page) -> Paged[operations_pb2.Operation]:
        """Builds, the newest first, then checks."""
        jobs = {f"b{job.id:015d}": job for job in self._supervisor.jobs.all()}
        checks = {f"a{each.name}": each for each in (await self.checks.list(Page(MAX_SIZE, None))).items}
        keys, token = paginate([*jobs, *checks], str, page, COLLECTION, descending=True)
        return Paged([await self.encode(jobs[key]) if key in jobs else checks[key] for key in keys], token)

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


async def first(*waits: Coroutine[Any, Any, object]) -> None:
    """Returns once any of them has ended; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
