"""`validate_only` in the child: all the checks of a build, up to its key, and no weights downloaded."""

from __future__ import annotations

from pathlib import Path

import msgspec

from builder_service.build.pipeline import Report, run_build
from builder_service.build.plan import make_plan
from builder_service.job import BuildJob, LogEvent, ResultEvent
from builder_service.models import read_spec
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
    if job.weights == "dummy":
        return run_build(job, report)  # its hub files are small
    try:
        return run_build(msgspec.structs.replace(job, offline=True), report)
    except NotFound as error:
        if error.reason != "NOT_IN_CACHE" or job.offline:
            raise
    return _check_on_hub(job, report)


def _check_on_hub(job: BuildJob, report: Report) -> ResultEvent:
    """A repository whose weights are not in the cache: its small files are fetched, and its config is checked."""
    from builder_service.sources.hub import download
    from builder_service.sources.hub_cache import HubCache

    source, cache = job.source, Path(job.cache) / "hub"
    whole = msgspec.structs.replace(source, file="")
    there = download(whole, cache, job.offline, lambda done, total: None, weights=False)
    sizes = {file.name: file.size for file in HubCache(cache, source.repo).listing(there.commit) or ()}
    if source.file and source.file not in sizes:
        message = f"{source.repo} at {there.commit} has no file {source.file} on the hub."
        raise NotFound(message, reason="HUB_NOT_FOUND", metadata={"repo": source.repo, "file": source.file})
    if not source.file:
        checkpoint = DummyCheckpoint(there.path)
        make_plan(job.build, checkpoint, read_spec(checkpoint.config))
    wanted = [name for name in sizes if name == source.file or (not source.file and name.endswith(".safetensors"))]
    missing = sum(sizes[name] for name in wanted)
    what = f"{source.repo}/{source.file}" if source.file else source.repo
    report(LogEvent("warning", f"{what} is not in the builder's cache: {missing} bytes on the hub were not checked"))
    return ResultEvent(job.engine_id, 0, reused=False)
