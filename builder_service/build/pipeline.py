"""One build from its job to a published version: the stages, in order."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from builder_service.build.capture import capture
from builder_service.build.convert import check_parameters, convert, plan_layout
from builder_service.build.machine import PeakMemory, cpu_name
from builder_service.build.plan import Plan, build_key, cache_groups, check_targets, make_plan, special_ids
from builder_service.build.tokenizer_files import has_tokenizer, write_json
from builder_service.job import BuildJob, ChildEvent, KeyEvent, LogEvent, ProgressEvent, ResultEvent, Stage, StageEvent
from builder_service.models import DecoderSpec, WeightParts, read_spec, weight_parts
from builder_service.sources import Checkpoint, open_checkpoint, open_dummy
from builder_service.verify import Staged, verify
from engine_ops.graph import OPSET, Graph, decode, encode
from engine_store import EngineStore
from engine_store.manifest import SCHEMA, Manifest, Source, Target, VerifyReport
from enginehouse.errors import DataLoss, EnginehouseError, FailedPrecondition, Internal, NotFound, ResourceExhausted

Report = Callable[[ChildEvent], None]
Progress = Callable[[int, int], None]

LIBRARIES = ("torch", "transformers", "safetensors", "tokenizers", "gguf", "huggingface-hub", "numpy")
"""Those that read a checkpoint or compute with it, for the record."""
WEIGHTS = "weights/rank0.safetensors"
GRAPH = "graph.json"


class Opened(NamedTuple):
    """What FETCHING finds."""

    checkpoint: Checkpoint
    spec: DecoderSpec
    parts: dict[str, WeightParts]
    plan: Plan
    source: Source
    key: str


class Built(NamedTuple):
    """What the middle stages make; the files lie in the staging directory."""

    graph: Graph
    report: VerifyReport
    facts: dict[str, str]


def run_build(job: BuildJob, report: Report) -> ResultEvent:
    """Builds and publishes one engine version, or finds the one that has its key.

    Args:
        job: see `BuildJob`; its paths are trusted.
        report: gets every event but the result.

    Returns:
        The version now in the store.

    Raises:
        EnginehouseError: the build cannot be done, or failed a gate; nothing was published.
    """
    check_targets(job)
    store = EngineStore(job.store, quota_bytes=job.store_quota_bytes)
    _check_alias(job, store)
    report(StageEvent(Stage.FETCHING))
    checkpoint = _open(job, report)
    try:
        opened = _inspect(job, checkpoint, report)
        existing = _satisfying(job, store, store.find(job.engine_id, opened.key))
        report(KeyEvent(opened.key, existing.version if existing else 0))
        if job.validate_only:
            return ResultEvent(job.engine_id, existing.version if existing else 0, reused=existing is not None)
        if existing is not None and not job.force:
            with contextlib.suppress(EnginehouseError, OSError), store.lease(job.engine_id, existing.version):
                pass  # it counts as used now: the quota shall not take first what was just asked for
            return ResultEvent(job.engine_id, existing.version, reused=True)
        return _build(job, opened, store, report)
    finally:
        checkpoint.close()


def _satisfying(job: BuildJob, store: EngineStore, found: Manifest | None) -> Manifest | None:
    """The version, unless files of it are missing or cut, or it was not verified and shall be."""
    if found is None or not _has_its_files(store, found):
        return None
    if job.verify == "off" or job.weights == "dummy":
        return found
    return found if found.verify_report is not None and found.verify_report.status == "passed" else None


def _has_its_files(store: EngineStore, manifest: Manifest) -> bool:
    """A look at their sizes: their digests take a verification."""
    try:
        return all(store.file_path(manifest, file).stat().st_size == file.size_bytes for file in manifest.files)
    except (DataLoss, OSError):
        return False


def _check_alias(job: BuildJob, store: EngineStore) -> None:
    """Refuses an alias that could not be set, before the work and not after."""
    if job.alias:
        with contextlib.suppress(NotFound):
            store.get_alias(job.engine_id, job.alias)


def _open(job: BuildJob, report: Report) -> Checkpoint:
    cache, progress = Path(job.cache), _progress(report, "bytes")
    if job.weights == "real":
        return open_checkpoint(job.source, cache, job.offline, progress)
    return open_dummy(job.source, cache, job.offline, progress, job.dummy_seed)


def _inspect(job: BuildJob, checkpoint: Checkpoint, report: Report) -> Opened:
    for note in checkpoint.notes:
        report(LogEvent("warning", note))
    spec = read_spec(checkpoint.config)
    parts = weight_parts(spec)
    check_parameters(checkpoint, parts, spec.tied_head)
    plan = make_plan(job.build, checkpoint, spec)
    digest = checkpoint.digest(_progress(report, "bytes"))
    source = Source(
        kind=checkpoint.origin.kind,
        location=checkpoint.origin.location,
        revision=checkpoint.origin.revision,
        digest=digest,
    )
    return Opened(checkpoint, spec, parts, plan, source, build_key(job, plan, digest, checkpoint.config))


def _build(job: BuildJob, opened: Opened, store: EngineStore, report: Report) -> ResultEvent:
    for evicted in store.make_room(plan_layout(opened.parts, opened.plan.dtype).data_bytes):
        report(LogEvent("info", f"{evicted.name}@{evicted.version} was deleted to make room in the store"))
    with store.stage() as staging:
        built = _stage_files(job, opened, staging.path, report)
        report(StageEvent(Stage.PUBLISHING))
        _check_unchanged(opened)
        found = store.find(job.engine_id, opened.key)
        force = job.force or (found is not None and _satisfying(job, store, found) is None)
        advance = _advance(staging.path, _progress(report, "bytes"))
        published = staging.publish(_manifest(job, opened, built, staging.path), force=force, progress=advance)
    return ResultEvent(job.engine_id, published.manifest.version, published.reused)


def _check_unchanged(opened: Opened) -> None:
    """The files are still those that the build key names: their digests are remembered, so that only one that was
    touched is read again."""
    if opened.checkpoint.digest(lambda done, total: None) != opened.source.digest:
        message = "The checkpoint's files changed while they were read; build again when nothing writes to them."
        raise FailedPrecondition(message, reason="CHECKPOINT_CHANGED", metadata={"location": opened.source.location})


def _stage_files(job: BuildJob, opened: Opened, directory: Path, report: Report) -> Built:
    """Everything between FETCHING and PUBLISHING."""
    facts: dict[str, str] = {}
    peak = PeakMemory()
    with peak, _Timed(facts, Stage.CONVERTING, report):
        _convert(job, opened, directory, _progress(report, "bytes"))
    if not (directory / "tokenizer" / "tokenizer.json").is_file():
        report(LogEvent("warning", "the checkpoint has no tokenizer: its engine takes token ids, no text"))
    with peak, _Timed(facts, Stage.CAPTURING, report):
        graph = capture(opened.spec, opened.plan.dtype, opened.plan.block_size)
        (directory / GRAPH).write_bytes(encode(graph))
    with _Timed(facts, Stage.COMPILING, report):
        _check_staged(directory, opened)
    with peak, _Timed(facts, Stage.VERIFYING, report):
        verified = _verify(job, opened, graph, directory, report)
    facts["peak_memory_bytes"] = str(peak.bytes)
    return Built(graph, verified, facts)


def _convert(job: BuildJob, opened: Opened, directory: Path, progress: Progress) -> None:
    needed = plan_layout(opened.parts, opened.plan.dtype).data_bytes
    free = shutil.disk_usage(directory).free
    if needed > free:
        message = f"The weights need {needed} bytes and the engine store has {free} free; delete engine versions."
        metadata = {"needed_bytes": needed, "free_bytes": free}
        raise ResourceExhausted(message, reason="STORE_FULL", metadata=metadata)
    (directory / "weights").mkdir()
    (directory / "tokenizer").mkdir()
    opened.checkpoint.write_tokenizer(directory / "tokenizer")
    convert(opened.checkpoint, opened.parts, opened.plan.dtype, directory / WEIGHTS, progress)
    write_json(
        directory / "config.json",
        {
            "pretrained_config": opened.checkpoint.config,
            "build_config": {
                "dtype": opened.plan.dtype,
                "max_batch_size": opened.plan.limits.max_batch_size,
                "max_num_tokens": opened.plan.limits.max_num_tokens,
                "max_seq_len": opened.plan.limits.max_seq_len,
                "tokens_per_block": opened.plan.block_size,
            },
            "quantization": None,
        },
    )


def _check_staged(directory: Path, opened: Opened) -> None:
    """The torch target compiles nothing: the graph and the weights file, as written, must fit each other."""
    from builder_service.sources.safetensors_header import read_header

    graph = decode((directory / GRAPH).read_bytes())
    stated = {name: (tensor.dtype, tensor.shape) for name, tensor in graph.weights.items()}
    written = {name: (info.dtype, info.shape) for name, info in read_header(directory / WEIGHTS).items()}
    if stated != written:
        different = sorted(name for name in stated.keys() | written.keys() if stated.get(name) != written.get(name))
        message = f"The graph and the weights file disagree on {different[0]}; please report the checkpoint."
        raise Internal(message, reason="STAGED_MISMATCH", metadata={"tensor": different[0]})


def _verify(job: BuildJob, opened: Opened, graph: Graph, directory: Path, report: Report) -> VerifyReport:
    if job.verify == "off" or job.weights == "dummy":
        return VerifyReport(status="off")
    staged = Staged(
        graph,
        directory / WEIGHTS,
        directory / "tokenizer",
        opened.plan.dtype,
        opened.plan.limits.max_seq_len,
        opened.spec.vocab_size,
    )
    verified = verify(staged, opened.checkpoint, _progress(report, unit=""))
    report(
        LogEvent(
            "info",
            f"verified: max |logit difference| {verified.max_logit_diff:.3g} of {verified.tolerance:.3g} allowed, "
            f"{verified.greedy_equal} of {verified.tokens} greedy tokens equal",
        )
    )
    return verified


def _manifest(job: BuildJob, opened: Opened, built: Built, directory: Path) -> Manifest:
    """The record; the store fills in `version` and `files`."""
    spec, plan, ids = opened.spec, opened.plan, special_ids(opened.checkpoint, opened.spec.vocab_size)
    target = Target(
        form="torch",
        dtype=plan.dtype,
        build_key=opened.key,
        libraries=_libraries("torch"),
        verified="executed" if built.report.status == "passed" else "not_run",
    )
    return Manifest(
        schema=SCHEMA,
        name=job.engine_id,
        version=0,
        build_key=opened.key,
        create_time=datetime.now(UTC).isoformat(timespec="seconds"),
        architecture=spec.architecture,
        opset=OPSET,
        vocab_size=spec.vocab_size,
        eos_token_ids=ids.eos,
        bos_token_id=ids.bos,
        pad_token_id=ids.pad,
        source=opened.source,
        targets=(target,),
        limits=plan.limits,
        cache_groups=cache_groups(spec, plan),
        features=_features(spec, directory / "tokenizer"),
        verify_report=built.report,
        build_facts={**_machine(), **built.facts, "weights": job.weights},
        labels=job.labels,
    )


def _features(spec: DecoderSpec, tokenizer: Path) -> tuple[str, ...]:
    present = {
        "sliding_window": any(spec.windows),
        "tied_head": spec.tied_head,
        "tokenizer": has_tokenizer(tokenizer),
    }
    return tuple(name for name, has in present.items() if has)


def _libraries(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _advance(directory: Path, progress: Progress) -> Callable[[int], None]:
    """Counts the bytes of the directory's files."""
    total, done = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    return advance


def _machine() -> dict[str, str]:
    """What the bytes and the times of a build depend on; nothing that names the machine."""
    return {
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cpus": str(os.cpu_count()),
        **_libraries("enginehouse", *LIBRARIES),
    }


def _progress(report: Report, unit: str) -> Progress:
    return lambda done, total: report(ProgressEvent(done, total, unit))


class _Timed:
    """Announces a stage, and records its seconds under "<stage>_seconds"."""

    def __init__(self, facts: dict[str, str], stage: Stage, report: Report) -> None:
        self._facts, self._stage, self._report = facts, stage, report

    def __enter__(self) -> None:
        self._report(StageEvent(self._stage))
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._facts[f"{self._stage}_seconds"] = f"{time.perf_counter() - self._start:.2f}"
