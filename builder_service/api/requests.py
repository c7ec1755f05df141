"""From a BuildEngineRequest to a BuildJob: everything is checked here, before anything is queued."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from builder_service.job import BuildConfig, BuildJob, SourceSpec
from engine_store.aliases import LATEST
from engine_store.names import check_id
from enginehouse._gen.enginehouse.builder.v1 import build_config_pb2 as config_pb
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse.errors import InvalidArgument, NotFound, PermissionDenied, unsupported_field
from service_kit.fields import refuse_unsupported
from service_kit.operations import require_uuid4

MAX_LABELS, MAX_LABEL_LENGTH = 64, 63
MAX_BYTES = 128 << 10
"""Of a request, which the queue keeps as it came, unknown fields and all."""
_MAX_TEXT = 4096

_HONOURED = frozenset(
    {
        "engine_id",
        "source",
        "build_config.max_seq_len",
        "build_config.max_batch_size",
        "build_config.max_num_tokens",
        "build_config.tokens_per_block",
        "build_config.dtype",
        "build_config.dry_run",
        "build_config.monitor_memory",
        "targets.form",
        "verify.off",
        "weights",
        "labels",
        "alias",
        "force",
        "validate_only",
        "request_id",
        "priority",
    }
)
# Fields that say what happens anyway: these values are accepted, any other is refused by name.
_NEUTRAL: dict[str, object] = {
    "build_config.max_beam_width": 1,
    "build_config.max_prompt_embedding_table_size": 0,
    "build_config.kv_cache_type": config_pb.KV_CACHE_TYPE_PAGED,
    "build_config.strongly_typed": True,
    "build_config.max_draft_len": 0,
    "build_config.speculative_decoding_mode": config_pb.SPECULATIVE_DECODING_MODE_NONE,
    "build_config.logits_dtype": common_pb2.DATA_TYPE_FLOAT32,
    "build_config.workers": 1,
    "quant_config.quant_algo": config_pb.QUANT_ALGO_NO_QUANT,
    "quant_config.kv_cache_quant_algo": config_pb.QUANT_ALGO_NO_QUANT,
    "parallel_config.tensor_parallel_size": 1,
    "parallel_config.pipeline_parallel_size": 1,
    "parallel_config.context_parallel_size": 1,
    "parallel_config.moe_tensor_parallel_size": 1,
    "parallel_config.moe_expert_parallel_size": 1,
    "parallel_config.moe_cluster_parallel_size": 1,
    "dummy_seed": 0,
}
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
_DTYPES: dict[int, Dtype] = {
    common_pb2.DATA_TYPE_UNSPECIFIED: "auto",
    common_pb2.DATA_TYPE_FLOAT32: "float32",
    common_pb2.DATA_TYPE_BFLOAT16: "bfloat16",
    common_pb2.DATA_TYPE_FLOAT16: "float16",
}
_RANGES = {
    "max_seq_len": (2, 1 << 24),
    "max_batch_size": (1, 1 << 16),
    "max_num_tokens": (1, 1 << 20),
    "tokens_per_block": (16, 128),
}


@dataclass(frozen=True, kw_only=True)
class Site:
    """What of the builder goes into every job. Checkpoint paths are resolved under `roots` only."""

    store: Path
    cache: Path
    roots: tuple[Path, ...]
    offline: bool = False
    store_quota_bytes: int = 0


def read_build(request: pb.BuildEngineRequest, site: Site) -> BuildJob:
    """The job that a request asks for.

    Raises:
        InvalidArgument: a missing or bad field; metadata `field` names it.
        Unimplemented: UNSUPPORTED_FIELD for what this version does not honour.
        NotFound: CHECKPOINT_NOT_FOUND for a path under the roots that is not there.
    """
    if (size := request.ByteSize()) > MAX_BYTES:
        raise InvalidArgument(
            f"The request has {size} bytes; what describes a build takes at most {MAX_BYTES}.",
            reason="REQUEST_TOO_LARGE",
            metadata={"size_bytes": size, "max_bytes": MAX_BYTES},
        )
    dummy = request.weights == pb.WEIGHTS_SOURCE_DUMMY
    honoured = _HONOURED | ({"dummy_seed"} if dummy else frozenset())
    refuse_unsupported(request, honoured | _neutral_fields(request))
    require_uuid4(request.request_id)
    check_id(request.engine_id, "engine_id")
    if request.alias and check_id(request.alias, "alias") == LATEST:
        raise _invalid("alias", "`latest` always means the newest version; choose another alias.")
    if not 0.0 <= priority(request) <= 1.0:  # nor is NaN
        raise _invalid("priority", f"`priority` is {request.priority}; give 0 to 1.")
    return BuildJob(
        engine_id=request.engine_id,
        store=str(site.store),
        cache=str(site.cache),
        source=_source(request.source, site),
        build=_build_config(request.build_config),
        targets=_targets(request),
        verify="off" if request.verify.off else "on",
        weights="dummy" if dummy else "real",
        dummy_seed=request.dummy_seed,
        labels=_labels(request),
        alias=request.alias,
        force=request.force,
        offline=site.offline,
        store_quota_bytes=site.store_quota_bytes,
    )


def priority(request: pb.BuildEngineRequest) -> float:
    """The request's priority, 0 to 1; 0.5 where it has none."""
    return request.priority if request.HasField("priority") else 0.5


def only_validates(request: pb.BuildEngineRequest) -> bool:
    """Whether nothing is to be built."""
    return request.validate_only or request.build_config.dry_run


def _neutral_fields(request: pb.BuildEngineRequest) -> frozenset[str]:
    return frozenset(path for path, value in _NEUTRAL.items() if _field(request, path) == value)


def _field(message: Any, path: str) -> Any:
    for name in path.split("."):
        message = getattr(message, name)
    return message


def _source(source: pb.CheckpointSource, site: Site) -> SourceSpec:
    match source.WhichOneof("source"):
        case "path":
            path = checkpoint_path(source.path, "source.path", site.roots)
            if not path.is_dir():
                raise _invalid("source.path", "`source.path` is a file; give the checkpoint's directory, or use gguf.")
            _refuse_links_out(path, "source.path", site.roots)
            return SourceSpec(kind="huggingface", path=str(path))
        case "hub":
            return SourceSpec(
                kind="hub", repo=_repo(source.hub.repo, "source.hub.repo"), revision=_revision(source.hub.revision)
            )
        case "gguf":
            return _gguf(source.gguf, site)
        case _:
            raise _invalid("source", "`source` is not set; give a path, a hub repository or a GGUF file.")


def _gguf(source: pb.GgufSource, site: Site) -> SourceSpec:
    match source.WhichOneof("source"):
        case "path":
            path = checkpoint_path(source.path, "source.gguf.path", site.roots)
            if not path.is_file():
                raise _invalid("source.gguf.path", "`source.gguf.path` is a directory; give the .gguf file.")
            return SourceSpec(kind="gguf", path=str(path))
        case "hub_file":
            file = source.hub_file
            if not file.file or file.file.startswith("/") or ".." in file.file.split("/"):
                raise _invalid("source.gguf.hub_file.file", "`file` must be a file's path in the repository.")
            repo = _repo(file.repo, "source.gguf.hub_file.repo")
            return SourceSpec(kind="hub", repo=repo, revision=_revision(file.revision), file=file.file)
        case _:
            raise _invalid("source.gguf", "`source.gguf` is not set; give a path or a file of a hub repository.")


def checkpoint_path(text: str, field: str, roots: tuple[Path, ...]) -> Path:
    """The real path of a checkpoint; links are followed first, so that none leads out of the roots. A relative path
    is looked for under each root in turn."""
    if not text or len(text) > _MAX_TEXT or "\0" in text:
        raise _invalid(field, f"`{field}` is no path; give one under the builder's roots: {_listed(roots)}.")
    inside = _inside(text, roots)
    if not inside:
        raise InvalidArgument(
            f"`{field}` {text!r} is not under the builder's checkpoint roots: {_listed(roots)}. Move the checkpoint "
            "there, or start the builder with its directory as a root.",
            reason="PATH_OUTSIDE_ROOTS",
            metadata={"field": field, "path": text, "roots": _listed(roots)},
        )
    try:
        return next(path for path in inside if _exists(path))
    except StopIteration:
        raise NotFound(
            f"There is no checkpoint {text!r} on the builder's machine; the path is the builder's, not the client's. "
            f"Its roots: {_listed(roots)}.",
            reason="CHECKPOINT_NOT_FOUND",
            metadata={"field": field, "path": text, "roots": _listed(roots)},
        ) from None
    except PermissionError:
        raise PermissionDenied(
            f"The builder may not read {text!r}; check the file's permissions.",
            reason="CHECKPOINT_UNREADABLE",
            metadata={"field": field, "path": text},
        ) from None


def _inside(text: str, roots: tuple[Path, ...]) -> list[Path]:
    """The real paths under the roots that `text` may mean; a loop of links means none."""
    found = []
    for root in roots:
        real = root.resolve()
        with contextlib.suppress(OSError, RuntimeError):  # pathlib's errors for a loop
            path = (real / text).resolve()
            found += [path] if path.is_relative_to(real) else []
    return found


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        raise
    except OSError:  # a name that no file system takes
        return False


def _refuse_links_out(directory: Path, field: str, roots: tuple[Path, ...]) -> None:
    """A file that is a link out of the roots would be copied into the engine, for everybody to download."""
    for entry in directory.iterdir():
        if entry.is_symlink() and not _inside(str(entry), roots):
            raise InvalidArgument(
                f"{entry.name!r} in the checkpoint is a link out of the builder's roots ({_listed(roots)}). Replace it "
                "by the file, or start the builder with the link's target under a root.",
                reason="PATH_OUTSIDE_ROOTS",
                metadata={"field": field, "path": entry.name, "roots": _listed(roots)},
            )


def _listed(roots: tuple[Path, ...]) -> str:
    return ", ".join(str(root) for root in roots) or "none (the builder was started without any)"


def _repo(repo: str, field: str) -> str:
    parts = repo.split("/")
    if len(repo) > 200 or not 1 <= len(parts) <= 2 or not all(_is_hub_name(part) for part in parts):
        raise _invalid(field, f"`{field}` must be a hub repository such as `owner/name`.")
    return repo


def _is_hub_name(part: str) -> bool:
    return part.isascii() and part[:1].isalnum() and all(char.isalnum() or char in "-_." for char in part)


def _revision(revision: str) -> str:
    if len(revision) > 200 or ".." in revision or not revision.isprintable() or revision.startswith(("/", "-")):
        raise _invalid("revision", "`revision` must be a branch, a tag or a commit.")
    return revision


def _build_config(config: config_pb.BuildConfig) -> BuildConfig:
    if config.dtype not in _DTYPES:
        raise _invalid("build_config.dtype", "`build_config.dtype` must be float32, bfloat16, float16 or unset.")
    given = {name: getattr(config, name) for name in _RANGES if config.HasField(name)}
    for name, value in given.items():
        low, high = _RANGES[name]
        if not low <= value <= high:
            raise _invalid(f"build_config.{name}", f"`build_config.{name}` is {value}; give {low} to {high}.")
    if (block := given.get("tokens_per_block", 32)) & (block - 1):
        raise _invalid("build_config.tokens_per_block", f"`tokens_per_block` is {block}; give a power of two.")
    return BuildConfig(dtype=_DTYPES[config.dtype], **given)


def _targets(request: pb.BuildEngineRequest) -> tuple[Literal["torch"], ...]:
    """Torch, once. The other forms are in the contract and not built yet."""
    for index, target in enumerate(request.targets):
        if target.form == common_pb2.TARGET_FORM_UNSPECIFIED:
            raise _invalid(f"targets[{index}].form", f"`targets[{index}].form` is not set; give a form.")
        if target.form != common_pb2.TARGET_FORM_TORCH:
            raise unsupported_field("targets.form", "other than TORCH is not built by this version")
    return ("torch",)


def _labels(request: pb.BuildEngineRequest) -> dict[str, str]:
    labels = dict(request.labels)
    if len(labels) > MAX_LABELS or any(len(text) > MAX_LABEL_LENGTH for pair in labels.items() for text in pair):
        raise _invalid("labels", f"`labels` takes at most {MAX_LABELS}, of at most {MAX_LABEL_LENGTH} characters each.")
    return labels


def _invalid(field: str, message: str) -> InvalidArgument:
    return InvalidArgument(message, metadata={"field": field})
