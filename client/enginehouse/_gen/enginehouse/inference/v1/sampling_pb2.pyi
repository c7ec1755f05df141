import datetime

from enginehouse._gen.enginehouse.common.v1 import common_pb2 as _common_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogprobsMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOGPROBS_MODE_UNSPECIFIED: _ClassVar[LogprobsMode]
    LOGPROBS_MODE_RAW: _ClassVar[LogprobsMode]
    LOGPROBS_MODE_PROCESSED: _ClassVar[LogprobsMode]

class RequestType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_TYPE_UNSPECIFIED: _ClassVar[RequestType]
    REQUEST_TYPE_CONTEXT_ONLY: _ClassVar[RequestType]
    REQUEST_TYPE_GENERATION_ONLY: _ClassVar[RequestType]
    REQUEST_TYPE_CONTEXT_AND_GENERATION: _ClassVar[RequestType]

class ScheduleStyle(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULE_STYLE_UNSPECIFIED: _ClassVar[ScheduleStyle]
    SCHEDULE_STYLE_CONTEXT_FIRST: _ClassVar[ScheduleStyle]
    SCHEDULE_STYLE_GENERATION_FIRST: _ClassVar[ScheduleStyle]
LOGPROBS_MODE_UNSPECIFIED: LogprobsMode
LOGPROBS_MODE_RAW: LogprobsMode
LOGPROBS_MODE_PROCESSED: LogprobsMode
REQUEST_TYPE_UNSPECIFIED: RequestType
REQUEST_TYPE_CONTEXT_ONLY: RequestType
REQUEST_TYPE_GENERATION_ONLY: RequestType
REQUEST_TYPE_CONTEXT_AND_GENERATION: RequestType
SCHEDULE_STYLE_UNSPECIFIED: ScheduleStyle
SCHEDULE_STYLE_CONTEXT_FIRST: ScheduleStyle
SCHEDULE_STYLE_GENERATION_FIRST: ScheduleStyle

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("n", "best_of", "use_beam_search", "max_tokens", "min_tokens", "end_id", "pad_id", "temperature", "top_k", "top_p", "top_p_min", "top_p_reset_ids", "top_p_decay", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty", "prompt_ignore_length", "no_repeat_ngram_size", "beam_search_diversity_rate", "length_penalty", "early_stopping", "beam_width_array", "stop", "stop_token_ids", "stop_token_sequences", "bad", "bad_token_ids", "bad_token_sequences", "ignore_eos", "embedding_bias", "logit_bias", "allowed_token_ids", "logits_processors", "apply_batched_logits_processor", "lookahead", "external_draft")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    N_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    USE_BEAM_SEARCH_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_ID_FIELD_NUMBER: _ClassVar[int]
    PAD_ID_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_P_MIN_FIELD_NUMBER: _ClassVar[int]
    TOP_P_RESET_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_P_DECAY_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IGNORE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    BEAM_SEARCH_DIVERSITY_RATE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    BEAM_WIDTH_ARRAY_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    BAD_FIELD_NUMBER: _ClassVar[int]
    BAD_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_TOKEN_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    APPLY_BATCHED_LOGITS_PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_DRAFT_FIELD_NUMBER: _ClassVar[int]
    n: int
    best_of: int
    use_beam_search: bool
    max_tokens: int
    min_tokens: int
    end_id: int
    pad_id: int
    temperature: float
    top_k: int
    top_p: float
    top_p_min: float
    top_p_reset_ids: int
    top_p_decay: float
    min_p: float
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    prompt_ignore_length: int
    no_repeat_ngram_size: int
    beam_search_diversity_rate: float
    length_penalty: float
    early_stopping: int
    beam_width_array: _containers.RepeatedScalarFieldContainer[int]
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop_token_sequences: _containers.RepeatedCompositeFieldContainer[TokenIds]
    bad: _containers.RepeatedScalarFieldContainer[str]
    bad_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_token_sequences: _containers.RepeatedCompositeFieldContainer[TokenIds]
    ignore_eos: bool
    embedding_bias: _containers.RepeatedScalarFieldContainer[float]
    logit_bias: _containers.ScalarMap[int, float]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logits_processors: _containers.RepeatedScalarFieldContainer[str]
    apply_batched_logits_processor: bool
    lookahead: LookaheadConfig
    external_draft: ExternalDraft
    def __init__(self, n: _Optional[int] = ..., best_of: _Optional[int] = ..., use_beam_search: _Optional[bool] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., end_id: _Optional[int] = ..., pad_id: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., top_p_min: _Optional[float] = ..., top_p_reset_ids: _Optional[int] = ..., top_p_decay: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., prompt_ignore_length: _Optional[int] = ..., no_repeat_ngram_size: _Optional[int] = ..., beam_search_diversity_rate: _Optional[float] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[int] = ..., beam_width_array: _Optional[_Iterable[int]] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., stop_token_sequences: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ..., bad: _Optional[_Iterable[str]] = ..., bad_token_ids: _Optional[_Iterable[int]] = ..., bad_token_sequences: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ..., ignore_eos: _Optional[bool] = ..., embedding_bias: _Optional[_Iterable[float]] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., logits_processors: _Optional[_Iterable[str]] = ..., apply_batched_logits_processor: _Optional[bool] = ..., lookahead: _Optional[_Union[LookaheadConfig, _Mapping]] = ..., external_draft: _Optional[_Union[ExternalDraft, _Mapping]] = ...) -> None: ...

class LookaheadConfig(_message.Message):
    __slots__ = ("max_window_size", "max_ngram_size", "max_verification_set_size")
    MAX_WINDOW_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_VERIFICATION_SET_SIZE_FIELD_NUMBER: _ClassVar[int]
    max_window_size: int
    max_ngram_size: int
    max_verification_set_size: int
    def __init__(self, max_window_size: _Optional[int] = ..., max_ngram_size: _Optional[int] = ..., max_verification_set_size: _Optional[int] = ...) -> None: ...

class ExternalDraft(_message.Message):
    __slots__ = ("token_ids", "logits", "acceptance_threshold")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logits: _common_pb2.Tensor
    acceptance_threshold: float
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logits: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., acceptance_threshold: _Optional[float] = ...) -> None: ...

class OutputOptions(_message.Message):
    __slots__ = ("logprobs", "prompt_logprobs", "logprobs_mode", "logprob_token_ids", "return_context_logits", "return_generation_logits", "return_encoder_output", "exclude_input_from_output", "return_perf_metrics", "additional_model_outputs", "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "return_hidden_states")
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_MODE_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RETURN_CONTEXT_LOGITS_FIELD_NUMBER: _ClassVar[int]
    RETURN_GENERATION_LOGITS_FIELD_NUMBER: _ClassVar[int]
    RETURN_ENCODER_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_INPUT_FROM_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RETURN_PERF_METRICS_FIELD_NUMBER: _ClassVar[int]
    ADDITIONAL_MODEL_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    DETOKENIZE_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPACES_BETWEEN_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STR_IN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RETURN_HIDDEN_STATES_FIELD_NUMBER: _ClassVar[int]
    logprobs: int
    prompt_logprobs: int
    logprobs_mode: LogprobsMode
    logprob_token_ids: _containers.RepeatedScalarFieldContainer[int]
    return_context_logits: bool
    return_generation_logits: bool
    return_encoder_output: bool
    exclude_input_from_output: bool
    return_perf_metrics: bool
    additional_model_outputs: _containers.RepeatedCompositeFieldContainer[AdditionalModelOutput]
    detokenize: bool
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    include_stop_str_in_output: bool
    return_hidden_states: bool
    def __init__(self, logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., logprobs_mode: _Optional[_Union[LogprobsMode, str]] = ..., logprob_token_ids: _Optional[_Iterable[int]] = ..., return_context_logits: _Optional[bool] = ..., return_generation_logits: _Optional[bool] = ..., return_encoder_output: _Optional[bool] = ..., exclude_input_from_output: _Optional[bool] = ..., return_perf_metrics: _Optional[bool] = ..., additional_model_outputs: _Optional[_Iterable[_Union[AdditionalModelOutput, _Mapping]]] = ..., detokenize: _Optional[bool] = ..., skip_special_tokens: _Optional[bool] = ..., spaces_between_special_tokens: _Optional[bool] = ..., include_stop_str_in_output: _Optional[bool] = ..., return_hidden_states: _Optional[bool] = ...) -> None: ...

class AdditionalModelOutput(_message.Message):
    __slots__ = ("name", "gather_context")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GATHER_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    gather_context: bool
    def __init__(self, name: _Optional[str] = ..., gather_context: _Optional[bool] = ...) -> None: ...

class GuidedDecoding(_message.Message):
    __slots__ = ("json_object", "json_schema", "regex", "grammar", "structural_tag", "choice", "backend")
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    json_object: bool
    json_schema: str
    regex: str
    grammar: str
    structural_tag: str
    choice: Choices
    backend: str
    def __init__(self, json_object: _Optional[bool] = ..., json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., grammar: _Optional[str] = ..., structural_tag: _Optional[str] = ..., choice: _Optional[_Union[Choices, _Mapping]] = ..., backend: _Optional[str] = ...) -> None: ...

class Choices(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class LoraRequest(_message.Message):
    __slots__ = ("name", "int_id", "path", "ckpt_source")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INT_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CKPT_SOURCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    int_id: int
    path: str
    ckpt_source: str
    def __init__(self, name: _Optional[str] = ..., int_id: _Optional[int] = ..., path: _Optional[str] = ..., ckpt_source: _Optional[str] = ...) -> None: ...

class PromptAdapterRequest(_message.Message):
    __slots__ = ("name", "id", "local_path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    local_path: str
    def __init__(self, name: _Optional[str] = ..., id: _Optional[int] = ..., local_path: _Optional[str] = ...) -> None: ...

class KvOptions(_message.Message):
    __slots__ = ("retention", "cache_salt", "bypass_prefix_cache")
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    BYPASS_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    retention: KvCacheRetentionConfig
    cache_salt: str
    bypass_prefix_cache: bool
    def __init__(self, retention: _Optional[_Union[KvCacheRetentionConfig, _Mapping]] = ..., cache_salt: _Optional[str] = ..., bypass_prefix_cache: _Optional[bool] = ...) -> None: ...

class KvCacheRetentionConfig(_message.Message):
    __slots__ = ("token_range_retention_configs", "decode_retention_priority", "decode_duration")
    TOKEN_RANGE_RETENTION_CONFIGS_FIELD_NUMBER: _ClassVar[int]
    DECODE_RETENTION_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DECODE_DURATION_FIELD_NUMBER: _ClassVar[int]
    token_range_retention_configs: _containers.RepeatedCompositeFieldContainer[TokenRangeRetention]
    decode_retention_priority: int
    decode_duration: _duration_pb2.Duration
    def __init__(self, token_range_retention_configs: _Optional[_Iterable[_Union[TokenRangeRetention, _Mapping]]] = ..., decode_retention_priority: _Optional[int] = ..., decode_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TokenRangeRetention(_message.Message):
    __slots__ = ("token_start", "token_end", "priority", "duration")
    TOKEN_START_FIELD_NUMBER: _ClassVar[int]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    token_start: int
    token_end: int
    priority: int
    duration: _duration_pb2.Duration
    def __init__(self, token_start: _Optional[int] = ..., token_end: _Optional[int] = ..., priority: _Optional[int] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DisaggregatedParams(_message.Message):
    __slots__ = ("request_type", "first_gen_tokens", "first_gen_log_probs", "first_gen_logits", "ctx_request_id", "opaque_state", "draft_tokens", "disagg_request_id", "ctx_dp_rank", "ctx_info_endpoint", "schedule_style", "multimodal_embedding_handles", "multimodal_hashes", "mrope_position_ids_handle", "mrope_position_deltas_handle")
    REQUEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    FIRST_GEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_GEN_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    FIRST_GEN_LOGITS_FIELD_NUMBER: _ClassVar[int]
    CTX_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OPAQUE_STATE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DISAGG_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CTX_DP_RANK_FIELD_NUMBER: _ClassVar[int]
    CTX_INFO_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_STYLE_FIELD_NUMBER: _ClassVar[int]
    MULTIMODAL_EMBEDDING_HANDLES_FIELD_NUMBER: _ClassVar[int]
    MULTIMODAL_HASHES_FIELD_NUMBER: _ClassVar[int]
    MROPE_POSITION_IDS_HANDLE_FIELD_NUMBER: _ClassVar[int]
    MROPE_POSITION_DELTAS_HANDLE_FIELD_NUMBER: _ClassVar[int]
    request_type: RequestType
    first_gen_tokens: _containers.RepeatedScalarFieldContainer[int]
    first_gen_log_probs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    first_gen_logits: _common_pb2.Tensor
    ctx_request_id: int
    opaque_state: bytes
    draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    disagg_request_id: int
    ctx_dp_rank: int
    ctx_info_endpoint: str
    schedule_style: ScheduleStyle
    multimodal_embedding_handles: _containers.RepeatedScalarFieldContainer[bytes]
    multimodal_hashes: _containers.RepeatedCompositeFieldContainer[MultimodalHash]
    mrope_position_ids_handle: bytes
    mrope_position_deltas_handle: bytes
    def __init__(self, request_type: _Optional[_Union[RequestType, str]] = ..., first_gen_tokens: _Optional[_Iterable[int]] = ..., first_gen_log_probs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., first_gen_logits: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., ctx_request_id: _Optional[int] = ..., opaque_state: _Optional[bytes] = ..., draft_tokens: _Optional[_Iterable[int]] = ..., disagg_request_id: _Optional[int] = ..., ctx_dp_rank: _Optional[int] = ..., ctx_info_endpoint: _Optional[str] = ..., schedule_style: _Optional[_Union[ScheduleStyle, str]] = ..., multimodal_embedding_handles: _Optional[_Iterable[bytes]] = ..., multimodal_hashes: _Optional[_Iterable[_Union[MultimodalHash, _Mapping]]] = ..., mrope_position_ids_handle: _Optional[bytes] = ..., mrope_position_deltas_handle: _Optional[bytes] = ...) -> None: ...

class MultimodalHash(_message.Message):
    __slots__ = ("words",)
    WORDS_FIELD_NUMBER: _ClassVar[int]
    words: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, words: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("top",)
    TOP_FIELD_NUMBER: _ClassVar[int]
    top: _containers.RepeatedCompositeFieldContainer[Logprob]
    def __init__(self, top: _Optional[_Iterable[_Union[Logprob, _Mapping]]] = ...) -> None: ...

class Logprob(_message.Message):
    __slots__ = ("token_id", "logprob", "rank")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    rank: int
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., rank: _Optional[int] = ...) -> None: ...
