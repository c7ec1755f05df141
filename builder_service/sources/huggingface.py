"""A Hugging Face checkpoint directory: config.json and safetensors weights, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors import safe_open

from builder_service.sources.base import Progress, broken
from builder_service.sources.digest import DigestCache
from builder_service.sources.safetensors_header import TensorInfo, read_header
from builder_service.tokenizer_files import TOKENIZER_FILES, copy_tokenizer
from engine_store.manifest import Source
from enginehouse.errors import EnginehouseError, FailedPrecondition, NotFound, Unimplemented

MAX_JSON_BYTES = 64 << 20
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5")
QUIET = frozenset({"README.md", "LICENSE", "LICENSE.txt", "USE_POLICY.md", ".gitattributes", ".gitignore"})


class Located(NamedTuple):
    """Where a tensor lies."""

    file: str
    info: TensorInfo


class HuggingFaceCheckpoint:
    """A checkpoint directory. See `Checkpoint` for the methods.

    Args:
        path: the directory.
        digests: cache of file digests.
        origin: recorded in the manifest; by default a local directory.

    Raises:
        NotFound: no such directory.
        FailedPrecondition: not a checkpoint, or one with missing, truncated, duplicate or pickled files.
        Unimplemented: the checkpoint brings code of its own, or is quantised.
    """

    def __init__(self, path: Path, digests: DigestCache, origin: Source | None = None) -> None:
        if not path.is_dir():
            raise _not_found(path)
        self._path = path
        self._digests = digests
        self.config = read_config(path)
        self.generation_config = read_json(path, "generation_config.json") or {}
        _refuse_code(path, self.config)
        shards = _shard_files(path)
        self._tensors = _locate(path, shards)
        self._handles: dict[str, Any] = {}
        self._files = tuple(sorted({"config.json", *shards, *_present(path, (INDEX, *TOKENIZER_FILES))}))
        self.notes = tuple(_stray_notes(path, frozenset(self._files)))
        self.dtype = _dominant_dtype(located.info for located in self._tensors.values())
        self.origin = origin or Source(kind="huggingface", location=str(path))

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].info.shape

    def nbytes(self, name: str) -> int:
        info = self._tensors[name].info
        return info.end - info.begin

    def tensor(self, name: str) -> torch.Tensor:
        file = self._tensors[name].file
        if file not in self._handles:
            self._handles[file] = safe_open(self._path / file, framework="pt")
        tensor: torch.Tensor = self._handles[file].get_tensor(name)
        return tensor

    def write_tokenizer(self, destination: Path) -> None:
        copy_tokenizer(self._path, destination)

    def digest(self, progress: Progress) -> str:
        return self._digests.tree(self._path, self._files, progress)

    def close(self) -> None:
        self._handles.clear()


def read_json(path: Path, name: str) -> dict[str, Any] | None:
    """A JSON object of the checkpoint; None when the file is absent."""
    file = path / name
    if not file.is_file():
        return None
    if file.stat().st_size > MAX_JSON_BYTES:
        raise broken("CHECKPOINT_CORRUPT", f"{name} is larger than {MAX_JSON_BYTES} bytes.", file=name)
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"{name} is not a JSON object; download the checkpoint again."
        raise broken("CHECKPOINT_CORRUPT", message, file=name) from error


def read_config(path: Path) -> dict[str, Any]:
    """The checkpoint's config.json."""
    config = read_json(path, "config.json")
    if config is None:
        message = (
            f"{path} is not a Hugging Face checkpoint: it has no config.json. Give the directory that holds "
            "config.json and model.safetensors, or a .gguf file as a GGUF source."
        )
        raise FailedPrecondition(message, reason="NOT_A_CHECKPOINT", metadata={"path": path})
    return config


def _not_found(path: Path) -> EnginehouseError:
    what = "is a file; give its directory, or a .gguf file as a GGUF source" if path.exists() else "does not exist"
    message = f"The checkpoint directory {path} {what}. The path is read on the builder's machine."
    return NotFound(message, reason="SOURCE_NOT_FOUND", metadata={"path": path})


def _refuse_code(path: Path, config: dict[str, Any]) -> None:
    tokenizer_config = read_json(path, "tokenizer_config.json") or {}
    for name, content in (("config.json", config), ("tokenizer_config.json", tokenizer_config)):
        if "auto_map" in content:
            message = f"{name} asks for Python code of its own (auto_map); the builder never runs a checkpoint's code."
            raise Unimplemented(message, reason="REMOTE_CODE", metadata={"file": name, "field": "auto_map"})
    if config.get("quantization_config"):
        quantization = config["quantization_config"]
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else "unknown"
        message = f"The checkpoint is quantised ({method}), which is not read yet; use the unquantised checkpoint."
        raise Unimplemented(message, reason="UNSUPPORTED_QUANTIZATION", metadata={"method": method})


def _present(path: Path, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if (path / name).is_file()]


def _shard_files(path: Path) -> list[str]:
    """The weight files: those of the index, or the single file."""
    if (path / INDEX).is_file():
        return _indexed_shards(path)
    if (path / SINGLE).is_file():
        return [SINGLE]
    pickled = sorted(file.name for file in path.iterdir() if file.suffix in PICKLED)
    if pickled:
        message = (
            f"The checkpoint has only pickled weights ({pickled[0]}), which can run code when they are read and are "
            "refused; convert them to safetensors with transformers' save_pretrained."
        )
        raise FailedPrecondition(message, reason="PICKLED_WEIGHTS", metadata={"file": pickled[0]})
    message = f"{path} has neither {SINGLE} nor {INDEX}; download the checkpoint's weights."
    raise FailedPrecondition(message, reason="CHECKPOINT_NO_WEIGHTS", metadata={"path": path})


def _indexed_shards(path: Path) -> list[str]:
    index = read_json(path, INDEX) or {}
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise broken("CHECKPOINT_CORRUPT", f"{INDEX} has no weight_map; download it again.", file=INDEX)
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            message = f"{INDEX} names {shard!r}, which is no safetensors file beside it."
            raise broken("CHECKPOINT_CORRUPT", message, file=INDEX)
        if not (path / shard).is_file():
            message = f"{INDEX} names {shard}, which is missing; download it."
            raise broken("CHECKPOINT_MISSING_SHARD", message, file=shard)
    return shards


def _locate(path: Path, shards: list[str]) -> dict[str, Located]:
    """Every tensor's place; the index and the shards must agree both ways."""
    tensors: dict[str, Located] = {}
    for shard in shards:
        for name, info in read_header(path / shard).items():
            if name in tensors:
                message = f"Tensor {name} is in both {tensors[name].file} and {shard}; remove one of the files."
                raise broken("CHECKPOINT_DUPLICATE_TENSOR", message, file=shard, tensor=name)
            tensors[name] = Located(shard, info)
    index = read_json(path, INDEX)
    if index is not None:
        _check_index(index["weight_map"], tensors)
    return tensors


def _check_index(weight_map: dict[str, str], tensors: dict[str, Located]) -> None:
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].file != shard:
            message = f"{INDEX} puts tensor {name} in {shard}, which does not hold it; download that file again."
            raise broken("CHECKPOINT_MISSING_TENSOR", message, file=shard, tensor=name)
    for name, located in tensors.items():
        if name not in weight_map:
            message = f"{located.file} holds tensor {name}, which {INDEX} does not name; the files do not match."
            raise broken("CHECKPOINT_STRAY_TENSOR", message, file=located.file, tensor=name)


def _stray_notes(path: Path, used: frozenset[str]) -> Iterator[str]:
    for file in sorted(path.iterdir()):
        if file.is_file() and file.name not in used and file.name not in QUIET:
            yield f"{file.name} is not part of the checkpoint and was left out."


def _dominant_dtype(infos: Iterator[TensorInfo]) -> str:
    """The type that most bytes have: a float32 norm among bfloat16 matrices does not decide."""
    sizes: dict[str, int] = {}
    for info in infos:
        sizes[info.dtype] = sizes.get(info.dtype, 0) + info.end - info.begin
    return max(sizes, key=lambda dtype: sizes[dtype], default="float32")
