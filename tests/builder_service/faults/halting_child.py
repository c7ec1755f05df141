"""`builder_service.child` that halts where the test says. With the argument `scripted` its pipeline is a small one
without torch, which makes the same steps and publishes a real version."""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[3]))

from builder_service import child
from builder_service.job import BuildJob, ChildEvent, KeyEvent, LogEvent, ProgressEvent, ResultEvent, Stage, StageEvent
from engine_store import EngineStore
from tests.builder_service.faults.halts import Halts
from tests.engine_store.writing import fill, manifest

Report = Callable[[ChildEvent], None]
HALTS = Halts.of_environment()


def build_key(job: BuildJob) -> str:
    """As the real one: of the source and what changes bytes, not of the alias, labels or the check."""
    build = msgspec.structs.replace(job.build, dtype="float32")
    return hashlib.sha256(msgspec.json.encode([job.source, build, job.targets, job.weights])).hexdigest()


def scripted_build(job: BuildJob, report: Report) -> ResultEvent:
    """The real pipeline's steps, with little in them."""
    store = _store(job.store)
    report(StageEvent(Stage.FETCHING))
    key = build_key(job)
    existing = store.find(job.engine_id, key)
    report(KeyEvent(key, existing.version if existing else 0))
    if existing and not job.force:
        return ResultEvent(job.engine_id, existing.version, reused=True)
    with store.stage() as staging:
        for stage in (Stage.CONVERTING, Stage.CAPTURING, Stage.COMPILING, Stage.VERIFYING):
            report(StageEvent(stage))
            report(ProgressEvent(1, 2, "tensors"))
            report(ProgressEvent(2, 2, "tensors"))
        report(LogEvent("info", "all is well"))
        fill(staging.path, key, 1 << 20)
        report(StageEvent(Stage.PUBLISHING))
        record = msgspec.structs.replace(manifest(job.engine_id, key), labels=job.labels)
        published = staging.publish(record, force=job.force)
    return ResultEvent(job.engine_id, published.manifest.version, published.reused)


def _store(root: str, **named: Any) -> EngineStore:
    return EngineStore(root, failpoint=HALTS.store_step, **named)


def halting(build: Callable[[BuildJob, Report], ResultEvent], job: BuildJob, report: Report) -> ResultEvent:
    """The build, which passes a point after each stage's begin, the key, and before the result."""
    HALTS.who = job.engine_id

    def report_and_pass(event: ChildEvent) -> None:
        report(event)
        if isinstance(event, StageEvent):
            HALTS.reached(f"stage:{event.stage}")
        elif isinstance(event, KeyEvent):
            HALTS.reached("key")

    HALTS.reached("job")
    result = build(job, report_and_pass)
    HALTS.reached("result")
    return result


def _replace(module: str, **content: object) -> None:
    """Stands for a module that would import torch."""
    sys.modules[module] = types.ModuleType(module)
    vars(sys.modules[module]).update(content)


def main() -> int:
    HALTS.reached("start")
    if sys.argv[1] == "scripted":
        _replace("builder_service.build.pipeline", run_build=partial(halting, scripted_build))
        _replace("builder_service.build.validate", run_check=None)
    else:
        from builder_service.build import pipeline

        pipeline.EngineStore = _store
        pipeline.run_build = partial(halting, pipeline.run_build)
    code = child.main()
    HALTS.reached("said")
    return code


if __name__ == "__main__":
    sys.exit(main())
