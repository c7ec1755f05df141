import datetime

from enginehouse._gen.enginehouse.builder.v1 import build_config_pb2 as _build_config_pb2
from enginehouse._gen.enginehouse.common.v1 import common_pb2 as _common_pb2
from google.api import resource_pb2 as _resource_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TargetVerification(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TARGET_VERIFICATION_UNSPECIFIED: _ClassVar[TargetVerification]
    TARGET_VERIFICATION_EXECUTED: _ClassVar[TargetVerification]
    TARGET_VERIFICATION_INTERPRETED: _ClassVar[TargetVerification]
    TARGET_VERIFICATION_NOT_RUN: _ClassVar[TargetVerification]
TARGET_VERIFICATION_UNSPECIFIED: TargetVerification
TARGET_VERIFICATION_EXECUTED: TargetVerification
TARGET_VERIFICATION_INTERPRETED: TargetVerification
TARGET_VERIFICATION_NOT_RUN: TargetVerification

class Engine(_message.Message):
    __slots__ = ("name", "latest_version", "version_count", "aliases", "create_time", "update_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LATEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    latest_version: int
    version_count: int
    aliases: _containers.RepeatedCompositeFieldContainer[Alias]
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., latest_version: _Optional[int] = ..., version_count: _Optional[int] = ..., aliases: _Optional[_Iterable[_Union[Alias, _Mapping]]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class EngineVersion(_message.Message):
    __slots__ = ("name", "build_key", "source_digest", "targets", "limits", "features", "mapping", "files_digest", "verify_report", "libraries", "compute_capabilities", "size_bytes", "create_time", "aliases", "labels", "cache_groups", "opset", "architecture", "dtype", "quant_algo", "vocab_size", "files", "delete_time", "source", "eos_token_ids", "bos_token_id", "pad_token_id", "build_facts", "last_use_time")
    class LibrariesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class BuildFactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUILD_KEY_FIELD_NUMBER: _ClassVar[int]
    SOURCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAPPING_FIELD_NUMBER: _ClassVar[int]
    FILES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VERIFY_REPORT_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CACHE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    OPSET_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANT_ALGO_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    DELETE_TIME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PAD_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BUILD_FACTS_FIELD_NUMBER: _ClassVar[int]
    LAST_USE_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    build_key: str
    source_digest: str
    targets: _containers.RepeatedCompositeFieldContainer[EngineTarget]
    limits: _common_pb2.EngineLimits
    features: _containers.RepeatedScalarFieldContainer[str]
    mapping: _common_pb2.ParallelConfig
    files_digest: str
    verify_report: VerifyReport
    libraries: _containers.ScalarMap[str, str]
    compute_capabilities: _containers.RepeatedScalarFieldContainer[str]
    size_bytes: int
    create_time: _timestamp_pb2.Timestamp
    aliases: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.ScalarMap[str, str]
    cache_groups: _containers.RepeatedCompositeFieldContainer[_common_pb2.CacheGroup]
    opset: int
    architecture: str
    dtype: _common_pb2.DataType
    quant_algo: _build_config_pb2.QuantAlgo
    vocab_size: int
    files: _containers.RepeatedCompositeFieldContainer[EngineFile]
    delete_time: _timestamp_pb2.Timestamp
    source: CheckpointOrigin
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bos_token_id: int
    pad_token_id: int
    build_facts: _containers.ScalarMap[str, str]
    last_use_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., build_key: _Optional[str] = ..., source_digest: _Optional[str] = ..., targets: _Optional[_Iterable[_Union[EngineTarget, _Mapping]]] = ..., limits: _Optional[_Union[_common_pb2.EngineLimits, _Mapping]] = ..., features: _Optional[_Iterable[str]] = ..., mapping: _Optional[_Union[_common_pb2.ParallelConfig, _Mapping]] = ..., files_digest: _Optional[str] = ..., verify_report: _Optional[_Union[VerifyReport, _Mapping]] = ..., libraries: _Optional[_Mapping[str, str]] = ..., compute_capabilities: _Optional[_Iterable[str]] = ..., size_bytes: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., aliases: _Optional[_Iterable[str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., cache_groups: _Optional[_Iterable[_Union[_common_pb2.CacheGroup, _Mapping]]] = ..., opset: _Optional[int] = ..., architecture: _Optional[str] = ..., dtype: _Optional[_Union[_common_pb2.DataType, str]] = ..., quant_algo: _Optional[_Union[_build_config_pb2.QuantAlgo, str]] = ..., vocab_size: _Optional[int] = ..., files: _Optional[_Iterable[_Union[EngineFile, _Mapping]]] = ..., delete_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., source: _Optional[_Union[CheckpointOrigin, _Mapping]] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., bos_token_id: _Optional[int] = ..., pad_token_id: _Optional[int] = ..., build_facts: _Optional[_Mapping[str, str]] = ..., last_use_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class EngineTarget(_message.Message):
    __slots__ = ("name", "form", "libraries", "compute_capabilities", "build_key", "verification", "size_bytes", "build_duration", "dtype")
    class LibrariesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    BUILD_KEY_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUILD_DURATION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    form: _common_pb2.TargetForm
    libraries: _containers.ScalarMap[str, str]
    compute_capabilities: _containers.RepeatedScalarFieldContainer[str]
    build_key: str
    verification: TargetVerification
    size_bytes: int
    build_duration: _duration_pb2.Duration
    dtype: _common_pb2.DataType
    def __init__(self, name: _Optional[str] = ..., form: _Optional[_Union[_common_pb2.TargetForm, str]] = ..., libraries: _Optional[_Mapping[str, str]] = ..., compute_capabilities: _Optional[_Iterable[str]] = ..., build_key: _Optional[str] = ..., verification: _Optional[_Union[TargetVerification, str]] = ..., size_bytes: _Optional[int] = ..., build_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., dtype: _Optional[_Union[_common_pb2.DataType, str]] = ...) -> None: ...

class CheckpointOrigin(_message.Message):
    __slots__ = ("kind", "location", "revision")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    location: str
    revision: str
    def __init__(self, kind: _Optional[str] = ..., location: _Optional[str] = ..., revision: _Optional[str] = ...) -> None: ...

class EngineFile(_message.Message):
    __slots__ = ("path", "size_bytes", "digest")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    digest: str
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class Alias(_message.Message):
    __slots__ = ("name", "version", "etag", "update_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    etag: str
    update_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., etag: _Optional[str] = ..., update_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class VerifyReport(_message.Message):
    __slots__ = ("passed", "gate", "prompts", "tokens", "equal_tokens", "max_logit_difference", "reference_difference", "mean_kl", "targets", "message", "tolerance", "reference")
    PASSED_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EQUAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGIT_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    MEAN_KL_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    passed: bool
    gate: str
    prompts: int
    tokens: int
    equal_tokens: int
    max_logit_difference: float
    reference_difference: float
    mean_kl: float
    targets: _containers.RepeatedCompositeFieldContainer[TargetReport]
    message: str
    tolerance: float
    reference: str
    def __init__(self, passed: _Optional[bool] = ..., gate: _Optional[str] = ..., prompts: _Optional[int] = ..., tokens: _Optional[int] = ..., equal_tokens: _Optional[int] = ..., max_logit_difference: _Optional[float] = ..., reference_difference: _Optional[float] = ..., mean_kl: _Optional[float] = ..., targets: _Optional[_Iterable[_Union[TargetReport, _Mapping]]] = ..., message: _Optional[str] = ..., tolerance: _Optional[float] = ..., reference: _Optional[str] = ...) -> None: ...

class TargetReport(_message.Message):
    __slots__ = ("target", "verification", "max_logit_difference", "message")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGIT_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    target: str
    verification: TargetVerification
    max_logit_difference: float
    message: str
    def __init__(self, target: _Optional[str] = ..., verification: _Optional[_Union[TargetVerification, str]] = ..., max_logit_difference: _Optional[float] = ..., message: _Optional[str] = ...) -> None: ...
