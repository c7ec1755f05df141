import datetime

from enginehouse._gen.enginehouse.builder.v1 import build_config_pb2 as _build_config_pb2
from enginehouse._gen.enginehouse.builder.v1 import engine_pb2 as _engine_pb2
from enginehouse._gen.enginehouse.common.v1 import common_pb2 as _common_pb2
from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.longrunning import operations_pb2 as _operations_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BuildStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BUILD_STAGE_UNSPECIFIED: _ClassVar[BuildStage]
    BUILD_STAGE_QUEUED: _ClassVar[BuildStage]
    BUILD_STAGE_FETCHING: _ClassVar[BuildStage]
    BUILD_STAGE_CONVERTING: _ClassVar[BuildStage]
    BUILD_STAGE_CAPTURING: _ClassVar[BuildStage]
    BUILD_STAGE_COMPILING: _ClassVar[BuildStage]
    BUILD_STAGE_VERIFYING: _ClassVar[BuildStage]
    BUILD_STAGE_PUBLISHING: _ClassVar[BuildStage]
    BUILD_STAGE_SUCCEEDED: _ClassVar[BuildStage]
    BUILD_STAGE_FAILED: _ClassVar[BuildStage]
    BUILD_STAGE_CANCELLED: _ClassVar[BuildStage]

class WeightsSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEIGHTS_SOURCE_UNSPECIFIED: _ClassVar[WeightsSource]
    WEIGHTS_SOURCE_REAL: _ClassVar[WeightsSource]
    WEIGHTS_SOURCE_DUMMY: _ClassVar[WeightsSource]

class LogLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOG_LEVEL_UNSPECIFIED: _ClassVar[LogLevel]
    LOG_LEVEL_DEBUG: _ClassVar[LogLevel]
    LOG_LEVEL_INFO: _ClassVar[LogLevel]
    LOG_LEVEL_WARNING: _ClassVar[LogLevel]
    LOG_LEVEL_ERROR: _ClassVar[LogLevel]
BUILD_STAGE_UNSPECIFIED: BuildStage
BUILD_STAGE_QUEUED: BuildStage
BUILD_STAGE_FETCHING: BuildStage
BUILD_STAGE_CONVERTING: BuildStage
BUILD_STAGE_CAPTURING: BuildStage
BUILD_STAGE_COMPILING: BuildStage
BUILD_STAGE_VERIFYING: BuildStage
BUILD_STAGE_PUBLISHING: BuildStage
BUILD_STAGE_SUCCEEDED: BuildStage
BUILD_STAGE_FAILED: BuildStage
BUILD_STAGE_CANCELLED: BuildStage
WEIGHTS_SOURCE_UNSPECIFIED: WeightsSource
WEIGHTS_SOURCE_REAL: WeightsSource
WEIGHTS_SOURCE_DUMMY: WeightsSource
LOG_LEVEL_UNSPECIFIED: LogLevel
LOG_LEVEL_DEBUG: LogLevel
LOG_LEVEL_INFO: LogLevel
LOG_LEVEL_WARNING: LogLevel
LOG_LEVEL_ERROR: LogLevel

class BuildEngineRequest(_message.Message):
    __slots__ = ("engine_id", "source", "build_config", "quant_config", "parallel_config", "targets", "verify", "weights", "dummy_seed", "labels", "alias", "force", "validate_only", "request_id", "tokenizer", "priority")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BUILD_CONFIG_FIELD_NUMBER: _ClassVar[int]
    QUANT_CONFIG_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DUMMY_SEED_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    source: CheckpointSource
    build_config: _build_config_pb2.BuildConfig
    quant_config: _build_config_pb2.QuantConfig
    parallel_config: _common_pb2.ParallelConfig
    targets: _containers.RepeatedCompositeFieldContainer[TargetSpec]
    verify: VerifyOptions
    weights: WeightsSource
    dummy_seed: int
    labels: _containers.ScalarMap[str, str]
    alias: str
    force: bool
    validate_only: bool
    request_id: str
    tokenizer: TokenizerSource
    priority: float
    def __init__(self, engine_id: _Optional[str] = ..., source: _Optional[_Union[CheckpointSource, _Mapping]] = ..., build_config: _Optional[_Union[_build_config_pb2.BuildConfig, _Mapping]] = ..., quant_config: _Optional[_Union[_build_config_pb2.QuantConfig, _Mapping]] = ..., parallel_config: _Optional[_Union[_common_pb2.ParallelConfig, _Mapping]] = ..., targets: _Optional[_Iterable[_Union[TargetSpec, _Mapping]]] = ..., verify: _Optional[_Union[VerifyOptions, _Mapping]] = ..., weights: _Optional[_Union[WeightsSource, str]] = ..., dummy_seed: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., alias: _Optional[str] = ..., force: _Optional[bool] = ..., validate_only: _Optional[bool] = ..., request_id: _Optional[str] = ..., tokenizer: _Optional[_Union[TokenizerSource, _Mapping]] = ..., priority: _Optional[float] = ...) -> None: ...

class CheckpointSource(_message.Message):
    __slots__ = ("hub", "path", "gguf")
    HUB_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    GGUF_FIELD_NUMBER: _ClassVar[int]
    hub: HubSource
    path: str
    gguf: GgufSource
    def __init__(self, hub: _Optional[_Union[HubSource, _Mapping]] = ..., path: _Optional[str] = ..., gguf: _Optional[_Union[GgufSource, _Mapping]] = ...) -> None: ...

class HubSource(_message.Message):
    __slots__ = ("repo", "revision")
    REPO_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    repo: str
    revision: str
    def __init__(self, repo: _Optional[str] = ..., revision: _Optional[str] = ...) -> None: ...

class GgufSource(_message.Message):
    __slots__ = ("path", "hub_file")
    PATH_FIELD_NUMBER: _ClassVar[int]
    HUB_FILE_FIELD_NUMBER: _ClassVar[int]
    path: str
    hub_file: HubFile
    def __init__(self, path: _Optional[str] = ..., hub_file: _Optional[_Union[HubFile, _Mapping]] = ...) -> None: ...

class HubFile(_message.Message):
    __slots__ = ("repo", "file", "revision")
    REPO_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    repo: str
    file: str
    revision: str
    def __init__(self, repo: _Optional[str] = ..., file: _Optional[str] = ..., revision: _Optional[str] = ...) -> None: ...

class TokenizerSource(_message.Message):
    __slots__ = ("hub", "path", "mode", "skip", "trust_remote_code")
    HUB_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    TRUST_REMOTE_CODE_FIELD_NUMBER: _ClassVar[int]
    hub: HubSource
    path: str
    mode: str
    skip: bool
    trust_remote_code: bool
    def __init__(self, hub: _Optional[_Union[HubSource, _Mapping]] = ..., path: _Optional[str] = ..., mode: _Optional[str] = ..., skip: _Optional[bool] = ..., trust_remote_code: _Optional[bool] = ...) -> None: ...

class TargetSpec(_message.Message):
    __slots__ = ("form", "compute_capabilities", "optimization_level", "workspace_bytes", "version_compatible")
    FORM_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZATION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_COMPATIBLE_FIELD_NUMBER: _ClassVar[int]
    form: _common_pb2.TargetForm
    compute_capabilities: _containers.RepeatedScalarFieldContainer[str]
    optimization_level: int
    workspace_bytes: int
    version_compatible: bool
    def __init__(self, form: _Optional[_Union[_common_pb2.TargetForm, str]] = ..., compute_capabilities: _Optional[_Iterable[str]] = ..., optimization_level: _Optional[int] = ..., workspace_bytes: _Optional[int] = ..., version_compatible: _Optional[bool] = ...) -> None: ...

class VerifyOptions(_message.Message):
    __slots__ = ("off", "prompts", "tokens", "max_logit_difference", "max_difference_ratio", "max_mean_kl")
    OFF_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGIT_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_DIFFERENCE_RATIO_FIELD_NUMBER: _ClassVar[int]
    MAX_MEAN_KL_FIELD_NUMBER: _ClassVar[int]
    off: bool
    prompts: int
    tokens: int
    max_logit_difference: float
    max_difference_ratio: float
    max_mean_kl: float
    def __init__(self, off: _Optional[bool] = ..., prompts: _Optional[int] = ..., tokens: _Optional[int] = ..., max_logit_difference: _Optional[float] = ..., max_difference_ratio: _Optional[float] = ..., max_mean_kl: _Optional[float] = ...) -> None: ...

class BuildMetadata(_message.Message):
    __slots__ = ("stage", "fraction", "stage_start_time", "attempt", "memory_peak_bytes", "estimate", "build_key", "message", "create_time", "end_time", "engine", "labels", "queue_position", "reused", "last_sequence", "expected_end_time", "shares_operation", "priority")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STAGE_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    STAGE_START_TIME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    BUILD_KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    REUSED_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_END_TIME_FIELD_NUMBER: _ClassVar[int]
    SHARES_OPERATION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    stage: BuildStage
    fraction: float
    stage_start_time: _timestamp_pb2.Timestamp
    attempt: int
    memory_peak_bytes: int
    estimate: BuildEstimate
    build_key: str
    message: str
    create_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    engine: str
    labels: _containers.ScalarMap[str, str]
    queue_position: int
    reused: bool
    last_sequence: int
    expected_end_time: _timestamp_pb2.Timestamp
    shares_operation: str
    priority: float
    def __init__(self, stage: _Optional[_Union[BuildStage, str]] = ..., fraction: _Optional[float] = ..., stage_start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., attempt: _Optional[int] = ..., memory_peak_bytes: _Optional[int] = ..., estimate: _Optional[_Union[BuildEstimate, _Mapping]] = ..., build_key: _Optional[str] = ..., message: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., engine: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., queue_position: _Optional[int] = ..., reused: _Optional[bool] = ..., last_sequence: _Optional[int] = ..., expected_end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., shares_operation: _Optional[str] = ..., priority: _Optional[float] = ...) -> None: ...

class BuildEstimate(_message.Message):
    __slots__ = ("memory_bytes", "disk_bytes", "duration")
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    memory_bytes: int
    disk_bytes: int
    duration: _duration_pb2.Duration
    def __init__(self, memory_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchBuildRequest(_message.Message):
    __slots__ = ("operation", "after_sequence")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    operation: str
    after_sequence: int
    def __init__(self, operation: _Optional[str] = ..., after_sequence: _Optional[int] = ...) -> None: ...

class BuildEvent(_message.Message):
    __slots__ = ("sequence", "time", "stage", "progress", "log", "memory", "finished")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    time: _timestamp_pb2.Timestamp
    stage: StageStarted
    progress: StageProgress
    log: LogLine
    memory: MemorySample
    finished: BuildFinished
    def __init__(self, sequence: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., stage: _Optional[_Union[StageStarted, _Mapping]] = ..., progress: _Optional[_Union[StageProgress, _Mapping]] = ..., log: _Optional[_Union[LogLine, _Mapping]] = ..., memory: _Optional[_Union[MemorySample, _Mapping]] = ..., finished: _Optional[_Union[BuildFinished, _Mapping]] = ...) -> None: ...

class StageStarted(_message.Message):
    __slots__ = ("stage", "fraction", "attempt")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    stage: BuildStage
    fraction: float
    attempt: int
    def __init__(self, stage: _Optional[_Union[BuildStage, str]] = ..., fraction: _Optional[float] = ..., attempt: _Optional[int] = ...) -> None: ...

class StageProgress(_message.Message):
    __slots__ = ("done", "total", "unit", "fraction")
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    done: float
    total: float
    unit: str
    fraction: float
    def __init__(self, done: _Optional[float] = ..., total: _Optional[float] = ..., unit: _Optional[str] = ..., fraction: _Optional[float] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("level", "text")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    level: LogLevel
    text: str
    def __init__(self, level: _Optional[_Union[LogLevel, str]] = ..., text: _Optional[str] = ...) -> None: ...

class MemorySample(_message.Message):
    __slots__ = ("current_bytes", "peak_bytes", "limit_bytes")
    CURRENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    current_bytes: int
    peak_bytes: int
    limit_bytes: int
    def __init__(self, current_bytes: _Optional[int] = ..., peak_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ...) -> None: ...

class BuildFinished(_message.Message):
    __slots__ = ("stage", "version", "error")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    stage: BuildStage
    version: _engine_pb2.EngineVersion
    error: _status_pb2.Status
    def __init__(self, stage: _Optional[_Union[BuildStage, str]] = ..., version: _Optional[_Union[_engine_pb2.EngineVersion, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class GetEngineRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListEnginesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListEnginesResponse(_message.Message):
    __slots__ = ("engines", "next_page_token")
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[_engine_pb2.Engine]
    next_page_token: str
    def __init__(self, engines: _Optional[_Iterable[_Union[_engine_pb2.Engine, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetEngineVersionRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListEngineVersionsRequest(_message.Message):
    __slots__ = ("parent", "page_size", "page_token", "show_deleted")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SHOW_DELETED_FIELD_NUMBER: _ClassVar[int]
    parent: str
    page_size: int
    page_token: str
    show_deleted: bool
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., show_deleted: _Optional[bool] = ...) -> None: ...

class ListEngineVersionsResponse(_message.Message):
    __slots__ = ("engine_versions", "next_page_token")
    ENGINE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    engine_versions: _containers.RepeatedCompositeFieldContainer[_engine_pb2.EngineVersion]
    next_page_token: str
    def __init__(self, engine_versions: _Optional[_Iterable[_Union[_engine_pb2.EngineVersion, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteEngineVersionRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SetAliasRequest(_message.Message):
    __slots__ = ("name", "version", "etag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    etag: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., etag: _Optional[str] = ...) -> None: ...

class DeleteAliasRequest(_message.Message):
    __slots__ = ("name", "etag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...

class ListAliasesRequest(_message.Message):
    __slots__ = ("parent", "page_size", "page_token")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    parent: str
    page_size: int
    page_token: str
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListAliasesResponse(_message.Message):
    __slots__ = ("aliases", "next_page_token")
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    aliases: _containers.RepeatedCompositeFieldContainer[_engine_pb2.Alias]
    next_page_token: str
    def __init__(self, aliases: _Optional[_Iterable[_Union[_engine_pb2.Alias, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class VerifyEngineVersionRequest(_message.Message):
    __slots__ = ("name", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    request_id: str
    def __init__(self, name: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class VerifyEngineVersionMetadata(_message.Message):
    __slots__ = ("name", "bytes_done", "bytes_total", "create_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    bytes_done: int
    bytes_total: int
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class VerifyEngineVersionResponse(_message.Message):
    __slots__ = ("name", "intact", "problems", "files_checked", "bytes_checked")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INTACT_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    FILES_CHECKED_FIELD_NUMBER: _ClassVar[int]
    BYTES_CHECKED_FIELD_NUMBER: _ClassVar[int]
    name: str
    intact: bool
    problems: _containers.RepeatedCompositeFieldContainer[FileProblem]
    files_checked: int
    bytes_checked: int
    def __init__(self, name: _Optional[str] = ..., intact: _Optional[bool] = ..., problems: _Optional[_Iterable[_Union[FileProblem, _Mapping]]] = ..., files_checked: _Optional[int] = ..., bytes_checked: _Optional[int] = ...) -> None: ...

class FileProblem(_message.Message):
    __slots__ = ("path", "problem", "expected", "found")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    path: str
    problem: str
    expected: str
    found: str
    def __init__(self, path: _Optional[str] = ..., problem: _Optional[str] = ..., expected: _Optional[str] = ..., found: _Optional[str] = ...) -> None: ...

class DownloadEngineVersionRequest(_message.Message):
    __slots__ = ("name", "targets")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    targets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., targets: _Optional[_Iterable[str]] = ...) -> None: ...

class CollectGarbageRequest(_message.Message):
    __slots__ = ("validate_only",)
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    validate_only: bool
    def __init__(self, validate_only: _Optional[bool] = ...) -> None: ...

class CollectGarbageResponse(_message.Message):
    __slots__ = ("removed_versions", "evicted_versions", "waiting_versions", "removed_blobs", "freed_bytes", "used_bytes", "quota_bytes")
    REMOVED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    WAITING_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_BLOBS_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    removed_versions: _containers.RepeatedScalarFieldContainer[str]
    evicted_versions: _containers.RepeatedScalarFieldContainer[str]
    waiting_versions: _containers.RepeatedScalarFieldContainer[str]
    removed_blobs: int
    freed_bytes: int
    used_bytes: int
    quota_bytes: int
    def __init__(self, removed_versions: _Optional[_Iterable[str]] = ..., evicted_versions: _Optional[_Iterable[str]] = ..., waiting_versions: _Optional[_Iterable[str]] = ..., removed_blobs: _Optional[int] = ..., freed_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., quota_bytes: _Optional[int] = ...) -> None: ...

class FileChunk(_message.Message):
    __slots__ = ("path", "offset", "data", "size_bytes", "digest")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    data: bytes
    size_bytes: int
    digest: str
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...
