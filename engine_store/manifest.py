"""`engine.json`: what an engine version is, readable without loading it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

SCHEMA = 1
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding damaged JSON raises; the last for deep nesting."""
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
TargetForm = Literal["torch", "tensorrt", "tensorrt-rtx"]
VerifiedHow = Literal["executed", "interpreted", "not_run"]


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base: immutable, strict."""


class File(_Record, frozen=True, kw_only=True):
    """A file of the version. `path` is relative to the version's directory; `digest` is
    "sha256-64m:<hex>": sha256 over the sha256 digests of each 64 MiB piece."""

    path: str
    size_bytes: int
    digest: str


class Target(_Record, frozen=True, kw_only=True):
    """One form in which the engine can run."""

    form: TargetForm
    dtype: str
    build_key: str
    libraries: dict[str, str] = {}
    compute_capabilities: tuple[str, ...] = ()
    verified: VerifiedHow = "not_run"


class Limits(_Record, frozen=True, kw_only=True):
    """Upper bounds that the engine was built for. Counts of sequences and tokens."""

    max_batch_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    max_num_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    max_seq_len: Annotated[int, msgspec.Meta(ge=2, le=1 << 24)]
    max_beam_width: int = 1


class CacheGroup(_Record, frozen=True, kw_only=True):
    """One group of layers that share block tables. Pool shape per layer and kind:
    [num_blocks, num_kv_heads, block_size, head_dim] in `dtype`."""

    kind: Literal["paged", "window", "latent", "state"]
    layers: tuple[int, ...]
    num_kv_heads: Count
    head_dim: Count
    dtype: str
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 10)]
    window: Count | None = None


class Mapping(_Record, frozen=True, kw_only=True):
    """Parallel mapping; rank i of world_size has its own graph and weights where they differ."""

    world_size: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1


class Source(_Record, frozen=True, kw_only=True):
    """Where the checkpoint came from. `digest` covers every byte that was read."""

    kind: Literal["huggingface", "hub", "gguf", "dummy"]
    location: str
    revision: str = ""
    digest: str = ""


class VerifyReport(_Record, frozen=True, kw_only=True):
    """What VERIFYING measured. Logit differences are absolute; `tolerance` is the gate that was applied."""

    status: Literal["passed", "off"]
    dtype: str = ""
    prompts: int = 0
    tokens: int = 0
    greedy_equal: int = 0
    max_logit_diff: float | None = None
    tolerance: float | None = None
    reference: str = ""


class Manifest(_Record, frozen=True, kw_only=True):
    """The whole record. `vocab_size` counts logits columns; `eos_token_ids` end generation."""

    schema: int
    name: str
    version: int
    build_key: str
    create_time: str
    architecture: str
    opset: int
    vocab_size: Count
    eos_token_ids: tuple[TokenId, ...]
    bos_token_id: TokenId | None = None
    pad_token_id: TokenId | None = None
    source: Source
    targets: tuple[Target, ...]
    limits: Limits
    mapping: Mapping = Mapping()
    cache_groups: tuple[CacheGroup, ...] = ()
    features: tuple[str, ...] = ()
    files: tuple[File, ...] = ()
    verify_report: VerifyReport | None = None
    build_facts: dict[str, str] = {}
    labels: dict[str, str] = {}
