"""What the queue's power-cut test does in a process with the fault shim: many changes, each noted when it was told."""

from __future__ import annotations

import random
from pathlib import Path

from builder_service.job import BuildJob, SourceSpec, Stage
from builder_service.queue.events import RUNNING, Finished, Log, Progress, Started, fraction
from builder_service.queue.jobs import JobStore
from builder_service.queue.state import Job
from tests.faults import shim

SPEC = BuildJob(engine_id="tiny", store="/s", cache="/c", source=SourceSpec(kind="huggingface", path="/m"))
PADDING = "x" * 2000
"""Makes the write-ahead log long enough to be copied back into the database, again and again."""


def load(root: str, log: str, builds: int, seed: int) -> int:
    """Submits builds, runs each a bit or to its end, and notes `acknowledged <operation>`, `seen <operation>
    <sequence>` and `ended <operation>` in the log. The number of builds."""
    chance = random.Random(seed)
    with shim.recorded(shim.Fault(Path(root)), Path(log)):
        jobs = JobStore(Path(root) / "builds.sqlite")
        for number in range(builds):
            job = jobs.submit(SPEC, PADDING.encode(), f"id{number}")
            shim.mark(f"acknowledged {job.operation}")
            if chance.random() < 0.9:
                _run(jobs, job, chance)
        jobs.close()
    return builds


def _run(jobs: JobStore, job: Job, chance: random.Random) -> None:
    for count, stage in enumerate(RUNNING):
        _tell(jobs, job, Started(stage, fraction(stage), 1))
        if count == 0:
            jobs.set_child(job.operation, "a token")
        for _ in range(chance.randrange(4)):
            _tell(jobs, job, Log("info", PADDING[: chance.randrange(2000)]))
            _tell(jobs, job, Progress(1, 2, "bytes", fraction(stage, 0.5)))
        if chance.random() < 0.1:
            return
    _tell(jobs, job, Finished(Stage.SUCCEEDED, version=1))
    shim.mark(f"ended {job.operation}")


def _tell(jobs: JobStore, job: Job, event: Started | Progress | Log | Finished) -> None:
    told = jobs.record(job.operation, event)
    shim.mark(f"seen {job.operation} {told.state.last_sequence}")
