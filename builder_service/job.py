"""A build as plain data: what the daemon hands to the build's child process, and what the child reports back.

The child (`python -m builder_service.child`) reads one `BuildJob` as JSON on standard input and writes one event a
line as JSON on standard output; its standard error is the log of libraries.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec


class Stage(StrEnum):
    """A build's stage. The last three are final."""

    QUEUED = "queued"
    FETCHING = "fetching"
    CONVERTING = "converting"
    CAPTURING = "capturing"
    COMPILING = "compiling"
    VERIFYING = "verifying"
    PUBLISHING = "publishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint. `path` is absolute and already checked against the builder's roots (directory for huggingface,
    file for gguf). For the hub: `repo`, `revision` (branch, tag or commit), and `file` for a GGUF file in the repo."""

    kind: Literal["huggingface", "hub", "gguf"]
    path: str = ""
    repo: str = ""
    revision: str = ""
    file: str = ""


class BuildConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What changes the engine's bytes. None: decided from the checkpoint."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_batch_size: int = 256
    max_num_tokens: int = 2048
    max_seq_len: int | None = None
    tokens_per_block: int = 32


class BuildJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the child needs. `engine_id` is a checked resource id."""

    engine_id: str
    store: str
    cache: str
    """Directory for downloads and source digests; the builder's own."""
    source: SourceSpec
    build: BuildConfig = BuildConfig()
    targets: tuple[Literal["torch", "tensorrt", "tensorrt-rtx"], ...] = ("torch",)
    verify: Literal["on", "off"] = "on"
    weights: Literal["real", "dummy"] = "real"
    dummy_seed: int = 0
    """Of dummy weights; 64 bits, signed."""
    labels: dict[str, str] = {}
    alias: str = ""
    force: bool = False
    offline: bool = False
    store_quota_bytes: int = 0
    """What the store may hold, the new version included; 0 for no bound."""
    validate_only: bool = False
    """Open and check everything that a build would, and stop before CONVERTING; the result's version is the one that
    has the build key, 0 for none."""


class StageEvent(msgspec.Struct, frozen=True, tag="stage"):
    """A stage began."""

    stage: Stage


class ProgressEvent(msgspec.Struct, frozen=True, tag="progress"):
    """Progress within the stage, in `unit` ("bytes", "tensors", "layers", "tokens")."""

    done: int
    total: int
    unit: str


class LogEvent(msgspec.Struct, frozen=True, tag="log"):
    """One line for a person."""

    level: Literal["info", "warning", "error"]
    text: str


class KeyEvent(msgspec.Struct, frozen=True, tag="key"):
    """The build key is known. `existing`: the version that already has it, 0 for none."""

    build_key: str
    existing: int = 0


class ResultEvent(msgspec.Struct, frozen=True, tag="result"):
    """The last event of a child that succeeded: the version now in the store (new or found)."""

    engine_id: str
    version: int
    reused: bool


class ErrorEvent(msgspec.Struct, frozen=True, tag="error"):
    """The last event of a child that failed with a typed error (enginehouse.errors)."""

    code: int
    reason: str
    message: str
    metadata: dict[str, str]


ChildEvent = StageEvent | ProgressEvent | LogEvent | KeyEvent | ResultEvent | ErrorEvent
