"""`validate_only` in the child: all the checks of a build, up to its key, and no weights downloaded."""

from __future__ import annotations

from pathlib import Path

import msgspec

from builder_service.job import BuildJob, LogEvent, ResultEvent
from builder_service.models import read_spec
from builder_service.pipeline import Report, run_build
from builder_service.plan import make_plan
from builder_service.sources.dummy import DummyCheckpoint
from enginehouse.errors import NotFound


def run_check(job: BuildJob, report: Report) -> ResultEvent:
    """Checks a job whose `validate_only` is set.

    Returns:
        The version that has the build key already; version 0 where there is none, or the key is not known because
        the weights are on the hub.

    Raises:
        EnginehouseError: what the build would fail with.
    """
    try:
        return run_build(msgspec.structs.replace(job, offline=True), report)
    except NotFound as error:
        if error.reason != "NOT_IN_CACHE" or job.offline:
            raise
    return _check_on_hub(job, report)


def _check_on_hub(job: BuildJob, report: Report) -> ResultEvent:
    """A repository that is not in the cache: its config.json alone is fetched and checked."""
    from builder_service.sources.hub import download

    if not job.source.file:
        spec = msgspec.structs.replace(job.source, file="config.json")
        config = download(spec, Path(job.cache) / "hub", job.offline, lambda done, total: None)
        checkpoint = DummyCheckpoint(config.path.parent)
        make_plan(job.build, checkpoint, read_spec(checkpoint.config))
    report(LogEvent("warning", f"{job.source.repo} is not in the builder's cache: its weights were not checked"))
    return ResultEvent(job.engine_id, 0, reused=False)
