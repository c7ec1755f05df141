"""From the builder's records to the wire's messages. The only place that knows both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from google.longrunning import operations_pb2
from google.protobuf import timestamp_pb2
from google.rpc import status_pb2

from builder_service.estimate import Estimate
from builder_service.job import ErrorEvent, Stage
from builder_service.queue import eta, events
from builder_service.queue.events import Stored
from builder_service.queue.state import Job
from engine_store import Alias, Collected, Manifest, VersionRef
from engine_store.manifest import CacheGroup, Target, VerifyReport
from engine_store.store import Problem
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse._gen.enginehouse.builder.v1 import engine_pb2
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse.errors import BY_CODE, EnginehouseError, to_status

_FORMS = {
    "torch": common_pb2.TARGET_FORM_TORCH,
    "tensorrt": common_pb2.TARGET_FORM_TENSORRT,
    "tensorrt-rtx": common_pb2.TARGET_FORM_TENSORRT_RTX,
}
_FOLDERS = {"torch": "weights/", "tensorrt": "tensorrt/", "tensorrt-rtx": "tensorrt_rtx/"}
_VERIFIED = {
    "executed": engine_pb2.TARGET_VERIFICATION_EXECUTED,
    "interpreted": engine_pb2.TARGET_VERIFICATION_INTERPRETED,
    "not_run": engine_pb2.TARGET_VERIFICATION_NOT_RUN,
}
_GATES = {"float32": "exact", "bfloat16": "rounding", "float16": "rounding"}
_BY_NUMBER = {code.value[0]: cls for code, cls in BY_CODE.items()}


class EngineView(NamedTuple):
    """An engine: the numbers of its versions that are not deleted (the newest first, at least one), when the first
    and the last of them were made (seconds since the epoch; empty where unknown), and its aliases."""

    engine: str
    numbers: list[int]
    made: list[float]
    aliases: list[Alias]


def timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    """Seconds since the epoch as a Timestamp."""
    value = timestamp_pb2.Timestamp()
    value.FromNanoseconds(int(seconds * 1e9))
    return value


def stage(value: Stage) -> str:
    """The enum's name, which messages take for its number."""
    return f"BUILD_STAGE_{value.name}"


def typed(error: ErrorEvent) -> EnginehouseError:
    """A stored error as an exception."""
    cls = _BY_NUMBER.get(error.code, EnginehouseError)
    return cls(error.message, reason=error.reason, metadata=error.metadata)


def status(error: ErrorEvent) -> status_pb2.Status:
    """A stored error as a Status with its details."""
    return to_status(typed(error))


# Builds


class Live(NamedTuple):
    """What of a build is not stored. `position`: how many come before it; `leader`: the operation whose result it
    takes, empty for none; `now` in seconds since the epoch."""

    position: int
    leader: str
    now: float


def operation(job: Job, live: Live, version: engine_pb2.EngineVersion | None) -> operations_pb2.Operation:
    """A build as an operation. `version`: what it made, where it succeeded and the version still exists."""
    state = job.state
    message = operations_pb2.Operation(name=job.operation, done=state.done)
    message.metadata.Pack(metadata(job, live))
    if state.error is not None:
        message.error.CopyFrom(status(state.error))
    elif state.done:
        message.response.Pack(_version_or_name(job, version))
    return message


def metadata(job: Job, live: Live) -> pb.BuildMetadata:
    state = job.state
    message = pb.BuildMetadata(
        stage=stage(state.stage),
        fraction=state.fraction,
        stage_start_time=timestamp(state.stage_time),
        attempt=state.attempt,
        memory_peak_bytes=state.memory_peak,
        build_key=state.build_key,
        message=state.message,
        create_time=timestamp(state.create_time),
        engine=f"engines/{job.spec.engine_id}",
        labels=job.spec.labels,
        queue_position=live.position,
        reused=state.reused,
        last_sequence=state.last_sequence,
        shares_operation=live.leader,
        priority=job.priority,
    )
    if state.end_time is not None:
        message.end_time.CopyFrom(timestamp(state.end_time))
    if (end := eta.expected_end(state, job.estimate, live.now)) is not None:
        message.expected_end_time.CopyFrom(timestamp(end))
    if job.estimate is not None:
        message.estimate.CopyFrom(estimate_message(job.estimate))
    return message


def estimate_message(estimate: Estimate) -> pb.BuildEstimate:
    message = pb.BuildEstimate(memory_bytes=estimate.memory_bytes, disk_bytes=estimate.disk_bytes)
    message.duration.FromMilliseconds(int(estimate.seconds * 1000))
    return message


def build_event(job: Job, stored: Stored, version: engine_pb2.EngineVersion | None) -> pb.BuildEvent:
    """A stored event. `version`: what the build made, for the finished event of one that succeeded."""
    message = pb.BuildEvent(sequence=stored.sequence, time=timestamp(stored.time))
    match stored.event:
        case events.Started(stage=began, fraction=fraction, attempt=attempt):
            message.stage.CopyFrom(pb.StageStarted(stage=stage(began), fraction=fraction, attempt=attempt))
        case events.Progress(done=done, total=total, unit=unit, fraction=fraction):
            message.progress.CopyFrom(pb.StageProgress(done=done, total=total, unit=unit, fraction=fraction))
        case events.Log(level=level, text=text):
            message.log.CopyFrom(pb.LogLine(level=f"LOG_LEVEL_{level.upper()}", text=text))
        case events.Memory(current=current, peak=peak, limit=limit):
            message.memory.CopyFrom(pb.MemorySample(current_bytes=current, peak_bytes=peak, limit_bytes=limit))
        case events.Finished(stage=end, error=error):
            message.finished.CopyFrom(pb.BuildFinished(stage=stage(end)))
            if error is not None:
                message.finished.error.CopyFrom(status(error))
            else:
                message.finished.version.CopyFrom(_version_or_name(job, version))
    return message


def _version_or_name(job: Job, version: engine_pb2.EngineVersion | None) -> engine_pb2.EngineVersion:
    """The whole version, or its name alone where it was deleted since."""
    if version is not None:
        return version
    return engine_pb2.EngineVersion(name=f"engines/{job.spec.engine_id}/versions/{job.state.version}")


# Engines


def engine(view: EngineView) -> engine_pb2.Engine:
    message = engine_pb2.Engine(
        name=f"engines/{view.engine}",
        latest_version=view.numbers[0],
        version_count=len(view.numbers),
        aliases=[alias(item) for item in view.aliases],
    )
    if view.made:
        message.create_time.CopyFrom(timestamp(min(view.made)))
        message.update_time.CopyFrom(timestamp(max([*view.made, *(item.update_time for item in view.aliases)])))
    return message


def alias(item: Alias) -> engine_pb2.Alias:
    return engine_pb2.Alias(
        name=f"engines/{item.engine}/aliases/{item.alias}",
        version=item.version,
        etag=item.etag,
        update_time=timestamp(item.update_time),
    )


def unreadable_version(engine: str, number: int, error: EnginehouseError) -> engine_pb2.EngineVersion:
    """A version whose manifest cannot be read: its name, and why."""
    return engine_pb2.EngineVersion(name=f"engines/{engine}/versions/{number}", build_facts={"error": error.message})


def deleted_version(manifest: Manifest, delete_time: float) -> engine_pb2.EngineVersion:
    """A version that was deleted. One that cannot be read has a name alone."""
    if manifest.targets:
        return engine_version(manifest, delete_time=delete_time)
    name = f"engines/{manifest.name}/versions/{manifest.version}"
    return engine_pb2.EngineVersion(name=name, delete_time=timestamp(delete_time))


def engine_version(
    manifest: Manifest,
    aliases: list[Alias] | None = None,
    *,
    delete_time: float | None = None,
    last_use: float | None = None,
) -> engine_pb2.EngineVersion:
    """A version as the wire has it. `aliases`: the engine's; those that point here are named. Times are seconds since
    the epoch."""
    message = engine_pb2.EngineVersion(
        name=f"engines/{manifest.name}/versions/{manifest.version}",
        build_key=manifest.build_key,
        source_digest=manifest.source.digest,
        targets=[_target(target, manifest) for target in manifest.targets],
        limits=common_pb2.EngineLimits(
            max_batch_size=manifest.limits.max_batch_size,
            max_num_tokens=manifest.limits.max_num_tokens,
            max_seq_len=manifest.limits.max_seq_len,
            max_beam_width=manifest.limits.max_beam_width,
        ),
        features=sorted(manifest.features),
        mapping=common_pb2.ParallelConfig(
            tensor_parallel_size=manifest.mapping.tensor_parallel,
            pipeline_parallel_size=manifest.mapping.pipeline_parallel,
        ),
        files_digest=_files_digest(manifest),
        libraries={name: value for target in manifest.targets for name, value in target.libraries.items()},
        compute_capabilities=sorted({cc for target in manifest.targets for cc in target.compute_capabilities}),
        size_bytes=sum(file.size_bytes for file in manifest.files),
        create_time=timestamp(seconds(manifest.create_time)),
        aliases=[item.alias for item in aliases or [] if item.version == manifest.version],
        labels=manifest.labels,
        cache_groups=[_cache_group(group) for group in manifest.cache_groups],
        opset=manifest.opset,
        architecture=manifest.architecture,
        dtype=_dtype(manifest.targets[0].dtype),
        vocab_size=manifest.vocab_size,
        eos_token_ids=manifest.eos_token_ids,
        bos_token_id=manifest.bos_token_id,
        pad_token_id=manifest.pad_token_id,
        files=[
            engine_pb2.EngineFile(path=file.path, size_bytes=file.size_bytes, digest=file.digest)
            for file in manifest.files
        ],
        source=engine_pb2.CheckpointOrigin(
            kind=manifest.source.kind, location=manifest.source.location, revision=manifest.source.revision
        ),
        build_facts=manifest.build_facts,
    )
    if manifest.verify_report is not None and manifest.verify_report.status != "off":
        message.verify_report.CopyFrom(_verify_report(manifest.verify_report, manifest))
    if delete_time is not None:
        message.delete_time.CopyFrom(timestamp(delete_time))
    if last_use is not None:
        message.last_use_time.CopyFrom(timestamp(last_use))
    return message


def problem(found: Problem) -> pb.FileProblem:
    return pb.FileProblem(path=found.path, problem=found.problem, expected=found.expected, found=found.found)


def collected(found: Collected) -> pb.CollectGarbageResponse:
    def named(versions: Iterable[VersionRef]) -> list[str]:
        return [f"engines/{engine}/versions/{version}" for engine, version in versions]

    return pb.CollectGarbageResponse(
        removed_versions=named(found.removed),
        evicted_versions=named(found.evicted),
        waiting_versions=named(found.waiting),
        removed_blobs=found.blobs,
        freed_bytes=found.freed_bytes,
        used_bytes=found.usage.used_bytes,
        quota_bytes=found.usage.quota_bytes,
    )


def _target(target: Target, manifest: Manifest) -> engine_pb2.EngineTarget:
    folder = _FOLDERS[target.form]
    return engine_pb2.EngineTarget(
        name=target.form,
        form=_FORMS[target.form],
        libraries=target.libraries,
        compute_capabilities=target.compute_capabilities,
        build_key=target.build_key,
        verification=_VERIFIED[target.verified],
        size_bytes=sum(file.size_bytes for file in manifest.files if file.path.startswith(folder)),
        dtype=_dtype(target.dtype),
    )


def _verify_report(report: VerifyReport, manifest: Manifest) -> engine_pb2.VerifyReport:
    difference = report.max_logit_diff or 0.0
    return engine_pb2.VerifyReport(
        passed=report.status == "passed",
        gate=_GATES.get(report.dtype, ""),
        prompts=report.prompts,
        tokens=report.tokens,
        equal_tokens=report.greedy_equal,
        max_logit_difference=difference,
        message=report.reference,
        targets=[
            engine_pb2.TargetReport(
                target=target.form, verification=_VERIFIED[target.verified], max_logit_difference=difference
            )
            for target in manifest.targets
        ],
    )


def _cache_group(group: CacheGroup) -> common_pb2.CacheGroup:
    return common_pb2.CacheGroup(
        kind=f"CACHE_KIND_{group.kind.upper()}",
        layers=group.layers,
        token_shape=[2, group.num_kv_heads, group.head_dim],
        dtype=_dtype(group.dtype),
        block_size=group.block_size,
        window=group.window or 0,
        layout="kv,block,head,slot,dim",
    )


def _dtype(name: str) -> str:
    """The enum's name for torch's name of a type, for example "bfloat16"."""
    return f"DATA_TYPE_{name.upper()}"


def _files_digest(manifest: Manifest) -> str:
    lines = (f"{file.path}\0{file.digest}\n" for file in sorted(manifest.files, key=lambda file: file.path))
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def seconds(iso: str) -> float:
    """A time of a manifest in seconds since the epoch."""
    return datetime.fromisoformat(iso).timestamp()
