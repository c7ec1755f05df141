"""Enginehouse: builds LLM engines as a service and serves them with in-flight batching.

from enginehouse import LLM, SamplingParams

with LLM("smollm2") as llm:
    print(llm.generate("The capital of France is", SamplingParams(max_tokens=8)).outputs[0].text)
"""

from enginehouse import _quiet as _quiet
from enginehouse.build import BuildHandle, BuildOptions, VerifyOptions
from enginehouse.builder_client import BuilderClient
from enginehouse.configs import (
    BuildConfig,
    CalibConfig,
    DynamicBatchConfig,
    KvCacheConfig,
    LoraConfig,
    ParallelConfig,
    PluginConfig,
    QuantConfig,
    SchedulerConfig,
)
from enginehouse.connection import TlsConfig
from enginehouse.engine_types import (
    Alias,
    BuildEstimate,
    BuildEvent,
    BuildFinished,
    BuildStatus,
    CheckpointOrigin,
    Engine,
    EngineFile,
    EngineLimits,
    EngineTarget,
    EngineVersion,
    GarbageReport,
    LogLine,
    MemorySample,
    StageProgress,
    StageStarted,
    VerifyReport,
    VerifyResult,
)
from enginehouse.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    EnginehouseError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from enginehouse.inputs import PromptInputs
from enginehouse.llm import LLM
from enginehouse.llm_args import LlmArgs
from enginehouse.model_client import LoadOptions, ModelClient, ModelLoad, ServedModel
from enginehouse.outputs import CompletionOutput, Logprob, RequestOutput, RequestPerfMetrics, Usage
from enginehouse.requests import (
    DisaggregatedParams,
    KvCacheRetentionConfig,
    LoRARequest,
    PromptAdapterRequest,
    TokenRangeRetentionConfig,
)
from enginehouse.sampling_params import (
    AdditionalModelOutput,
    GuidedDecodingParams,
    LookaheadDecodingConfig,
    SamplingParams,
)
from enginehouse.tokenizer import RemoteTokenizer

__all__ = [
    "LLM",
    "Aborted",
    "AdditionalModelOutput",
    "Alias",
    "AlreadyExists",
    "BuildConfig",
    "BuildEstimate",
    "BuildEvent",
    "BuildFinished",
    "BuildHandle",
    "BuildOptions",
    "BuildStatus",
    "BuilderClient",
    "CalibConfig",
    "Cancelled",
    "CheckpointOrigin",
    "CompletionOutput",
    "DataLoss",
    "DeadlineExceeded",
    "DisaggregatedParams",
    "DynamicBatchConfig",
    "Engine",
    "EngineFile",
    "EngineLimits",
    "EngineTarget",
    "EngineVersion",
    "EnginehouseError",
    "FailedPrecondition",
    "GarbageReport",
    "GuidedDecodingParams",
    "Internal",
    "InvalidArgument",
    "KvCacheConfig",
    "KvCacheRetentionConfig",
    "LlmArgs",
    "LoRARequest",
    "LoadOptions",
    "LogLine",
    "Logprob",
    "LookaheadDecodingConfig",
    "LoraConfig",
    "MemorySample",
    "ModelClient",
    "ModelLoad",
    "NotFound",
    "ParallelConfig",
    "PermissionDenied",
    "PluginConfig",
    "PromptAdapterRequest",
    "PromptInputs",
    "QuantConfig",
    "RemoteTokenizer",
    "RequestOutput",
    "RequestPerfMetrics",
    "ResourceExhausted",
    "SamplingParams",
    "SchedulerConfig",
    "ServedModel",
    "StageProgress",
    "StageStarted",
    "TlsConfig",
    "TokenRangeRetentionConfig",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Usage",
    "VerifyOptions",
    "VerifyReport",
    "VerifyResult",
]
