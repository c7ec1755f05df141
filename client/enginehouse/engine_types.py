"""What the builder tells: engines, versions, aliases, builds and their events. Times are datetimes in UTC."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from enginehouse.errors import EnginehouseError


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """The bounds that an engine was built for; None: not stated."""

    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_input_len: int | None = None
    max_seq_len: int | None = None
    max_beam_width: int | None = None


@dataclass(frozen=True, kw_only=True)
class EngineTarget:
    """One form that a version can run as. `verification`: executed, interpreted or not_run."""

    name: str = ""
    form: str = ""
    libraries: dict[str, str] = field(default_factory=dict)
    compute_capabilities: tuple[str, ...] = ()
    build_key: str = ""
    verification: str = ""
    size_bytes: int = 0
    build_duration: float | None = None
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What comparing an engine with its checkpoint found."""

    passed: bool = False
    gate: str = ""
    prompts: int = 0
    tokens: int = 0
    equal_tokens: int = 0
    max_logit_difference: float = 0.0
    reference_difference: float = 0.0
    mean_kl: float = 0.0
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckpointOrigin:
    """Where a checkpoint came from. `kind`: huggingface, hub, gguf or dummy; `revision`: the commit of a hub's."""

    kind: str = ""
    location: str = ""
    revision: str = ""


@dataclass(frozen=True, kw_only=True)
class CacheGroup:
    """Layers that share one cache: `kind` paged, window, latent or state; blocks of `block_size` tokens."""

    kind: str = ""
    layers: tuple[int, ...] = ()
    token_shape: tuple[int, ...] = ()
    dtype: str = ""
    block_size: int = 0
    window: int = 0


@dataclass(frozen=True, kw_only=True)
class EngineFile:
    path: str = ""
    size_bytes: int = 0
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class EngineVersion:
    """A published engine: complete and immutable."""

    name: str = ""
    """engines/{engine}/versions/{n}"""
    build_key: str = ""
    source_digest: str = ""
    targets: tuple[EngineTarget, ...] = ()
    limits: EngineLimits | None = None
    features: tuple[str, ...] = ()
    files_digest: str = ""
    verify_report: VerifyReport | None = None
    libraries: dict[str, str] = field(default_factory=dict)
    compute_capabilities: tuple[str, ...] = ()
    size_bytes: int = 0
    create_time: datetime | None = None
    aliases: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    opset: int = 0
    architecture: str = ""
    dtype: str = ""
    quant_algo: str = ""
    vocab_size: int = 0
    files: tuple[EngineFile, ...] = ()
    delete_time: datetime | None = None
    source: CheckpointOrigin | None = None
    build_facts: dict[str, str] = field(default_factory=dict)
    cache_groups: tuple[CacheGroup, ...] = ()
    last_use_time: datetime | None = None
    """When a server or a download last held it; None for one that never was."""

    @property
    def engine(self) -> str:
        """The engine's id."""
        return self.name.split("/")[1]

    @property
    def number(self) -> int:
        """The version's number."""
        return int(self.name.rpartition("/")[2])


@dataclass(frozen=True, kw_only=True)
class Alias:
    """A movable name for one version of an engine. `etag` changes with it."""

    name: str = ""
    version: int = 0
    etag: str = ""
    update_time: datetime | None = None

    @property
    def id(self) -> str:
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A named line of versions."""

    name: str = ""
    latest_version: int = 0
    version_count: int = 0
    aliases: tuple[Alias, ...] = ()
    create_time: datetime | None = None
    update_time: datetime | None = None

    @property
    def id(self) -> str:
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class FileProblem:
    """A file that is not as the manifest says: missing, size, digest or unexpected."""

    path: str = ""
    problem: str = ""
    expected: str = ""
    found: str = ""


@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """What reading every file of a version again found."""

    name: str = ""
    intact: bool = False
    problems: tuple[FileProblem, ...] = ()
    files_checked: int = 0
    bytes_checked: int = 0


@dataclass(frozen=True, kw_only=True)
class GarbageReport:
    """What `BuilderClient.collect_garbage` removed. Versions are named engines/{engine}/versions/{n}.

    removed_versions: gone for good. evicted_versions: deleted because the store is above its quota; their files go two
    minutes later. waiting_versions: deleted, files still there. freed_bytes, used_bytes, quota_bytes (0: none): bytes.
    """

    removed_versions: tuple[str, ...] = ()
    evicted_versions: tuple[str, ...] = ()
    waiting_versions: tuple[str, ...] = ()
    removed_blobs: int = 0
    freed_bytes: int = 0
    used_bytes: int = 0
    quota_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class BuildEstimate:
    memory_bytes: int = 0
    disk_bytes: int = 0
    duration: float | None = None
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class BuildStatus:
    """Where a build is. `stage`: queued, fetching, converting, capturing, compiling, verifying, publishing, succeeded,
    failed or cancelled."""

    stage: str = ""
    fraction: float = 0.0
    stage_start_time: datetime | None = None
    attempt: int = 0
    memory_peak_bytes: int = 0
    estimate: BuildEstimate | None = None
    build_key: str = ""
    message: str = ""
    create_time: datetime | None = None
    end_time: datetime | None = None
    engine: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    queue_position: int = 0
    reused: bool = False
    last_sequence: int = 0
    expected_end_time: datetime | None = None
    """Of a running build, told from its progress so far."""
    shares_operation: str = ""
    """The identical build whose result this one takes; empty for one that builds itself."""
    priority: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StageStarted:
    """A stage began; `fraction` of the whole build is done."""

    stage: str = ""
    fraction: float = 0.0
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class StageProgress:
    """The stage moved on: `done` of `total` (0: unknown) in `unit`."""

    done: float = 0.0
    total: float = 0.0
    unit: str = ""
    fraction: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LogLine:
    level: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class MemorySample:
    current_bytes: int = 0
    peak_bytes: int = 0
    limit_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class BuildFinished:
    """The build ended: with a `version`, or an `error`."""

    stage: str = ""
    version: EngineVersion | None = None
    error: EnginehouseError | None = None


BuildDetail: TypeAlias = StageStarted | StageProgress | LogLine | MemorySample | BuildFinished


@dataclass(frozen=True, kw_only=True)
class BuildEvent:
    """One thing that happened to a build. `sequence` counts from 1; a gap means that old events were dropped."""

    sequence: int
    time: datetime | None
    detail: BuildDetail
