from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]
    DATA_TYPE_BFLOAT16: _ClassVar[DataType]
    DATA_TYPE_FLOAT8_E4M3: _ClassVar[DataType]
    DATA_TYPE_FLOAT8_E5M2: _ClassVar[DataType]
    DATA_TYPE_FLOAT4_E2M1: _ClassVar[DataType]
    DATA_TYPE_INT8: _ClassVar[DataType]
    DATA_TYPE_UINT8: _ClassVar[DataType]
    DATA_TYPE_INT4: _ClassVar[DataType]
    DATA_TYPE_INT32: _ClassVar[DataType]
    DATA_TYPE_INT64: _ClassVar[DataType]
    DATA_TYPE_BOOL: _ClassVar[DataType]

class TargetForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TARGET_FORM_UNSPECIFIED: _ClassVar[TargetForm]
    TARGET_FORM_TORCH: _ClassVar[TargetForm]
    TARGET_FORM_TENSORRT: _ClassVar[TargetForm]
    TARGET_FORM_TENSORRT_RTX: _ClassVar[TargetForm]

class CacheKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_KIND_UNSPECIFIED: _ClassVar[CacheKind]
    CACHE_KIND_PAGED: _ClassVar[CacheKind]
    CACHE_KIND_WINDOW: _ClassVar[CacheKind]
    CACHE_KIND_LATENT: _ClassVar[CacheKind]
    CACHE_KIND_STATE: _ClassVar[CacheKind]
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_FLOAT16: DataType
DATA_TYPE_BFLOAT16: DataType
DATA_TYPE_FLOAT8_E4M3: DataType
DATA_TYPE_FLOAT8_E5M2: DataType
DATA_TYPE_FLOAT4_E2M1: DataType
DATA_TYPE_INT8: DataType
DATA_TYPE_UINT8: DataType
DATA_TYPE_INT4: DataType
DATA_TYPE_INT32: DataType
DATA_TYPE_INT64: DataType
DATA_TYPE_BOOL: DataType
TARGET_FORM_UNSPECIFIED: TargetForm
TARGET_FORM_TORCH: TargetForm
TARGET_FORM_TENSORRT: TargetForm
TARGET_FORM_TENSORRT_RTX: TargetForm
CACHE_KIND_UNSPECIFIED: CacheKind
CACHE_KIND_PAGED: CacheKind
CACHE_KIND_WINDOW: CacheKind
CACHE_KIND_LATENT: CacheKind
CACHE_KIND_STATE: CacheKind

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ParallelConfig(_message.Message):
    __slots__ = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "moe_tensor_parallel_size", "moe_expert_parallel_size", "moe_cluster_parallel_size", "gpus_per_node", "enable_attention_dp", "auto_parallel", "context_parallel_config")
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    MOE_TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    MOE_EXPERT_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    MOE_CLUSTER_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    GPUS_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    ENABLE_ATTENTION_DP_FIELD_NUMBER: _ClassVar[int]
    AUTO_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_PARALLEL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    tensor_parallel_size: int
    pipeline_parallel_size: int
    context_parallel_size: int
    moe_tensor_parallel_size: int
    moe_expert_parallel_size: int
    moe_cluster_parallel_size: int
    gpus_per_node: int
    enable_attention_dp: bool
    auto_parallel: bool
    context_parallel_config: ContextParallelConfig
    def __init__(self, tensor_parallel_size: _Optional[int] = ..., pipeline_parallel_size: _Optional[int] = ..., context_parallel_size: _Optional[int] = ..., moe_tensor_parallel_size: _Optional[int] = ..., moe_expert_parallel_size: _Optional[int] = ..., moe_cluster_parallel_size: _Optional[int] = ..., gpus_per_node: _Optional[int] = ..., enable_attention_dp: _Optional[bool] = ..., auto_parallel: _Optional[bool] = ..., context_parallel_config: _Optional[_Union[ContextParallelConfig, _Mapping]] = ...) -> None: ...

class ContextParallelConfig(_message.Message):
    __slots__ = ("kind", "block_size")
    KIND_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    block_size: int
    def __init__(self, kind: _Optional[str] = ..., block_size: _Optional[int] = ...) -> None: ...

class EngineLimits(_message.Message):
    __slots__ = ("max_batch_size", "max_num_tokens", "max_input_len", "max_seq_len", "max_beam_width", "max_prompt_embedding_table_size", "max_draft_len", "max_lora_rank", "max_encoder_input_len")
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_INPUT_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_BEAM_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_EMBEDDING_TABLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_LORA_RANK_FIELD_NUMBER: _ClassVar[int]
    MAX_ENCODER_INPUT_LEN_FIELD_NUMBER: _ClassVar[int]
    max_batch_size: int
    max_num_tokens: int
    max_input_len: int
    max_seq_len: int
    max_beam_width: int
    max_prompt_embedding_table_size: int
    max_draft_len: int
    max_lora_rank: int
    max_encoder_input_len: int
    def __init__(self, max_batch_size: _Optional[int] = ..., max_num_tokens: _Optional[int] = ..., max_input_len: _Optional[int] = ..., max_seq_len: _Optional[int] = ..., max_beam_width: _Optional[int] = ..., max_prompt_embedding_table_size: _Optional[int] = ..., max_draft_len: _Optional[int] = ..., max_lora_rank: _Optional[int] = ..., max_encoder_input_len: _Optional[int] = ...) -> None: ...

class CacheGroup(_message.Message):
    __slots__ = ("kind", "layers", "token_shape", "dtype", "block_size", "window", "layout", "num_blocks")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    kind: CacheKind
    layers: _containers.RepeatedScalarFieldContainer[int]
    token_shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: DataType
    block_size: int
    window: int
    layout: str
    num_blocks: int
    def __init__(self, kind: _Optional[_Union[CacheKind, str]] = ..., layers: _Optional[_Iterable[int]] = ..., token_shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[DataType, str]] = ..., block_size: _Optional[int] = ..., window: _Optional[int] = ..., layout: _Optional[str] = ..., num_blocks: _Optional[int] = ...) -> None: ...
