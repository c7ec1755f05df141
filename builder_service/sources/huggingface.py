"""A Hugging Face checkpoint directory: config.json and safetensors weights, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from builder_service.build.tokenizer_files import TOKENIZER_FILES, copy_tokenizer
from builder_service.sources.base import Progress, TensorFile, assemble, broken
from builder_service.sources.digest import DigestCache
from builder_service.sources.json_files import read_json, read_unique_json
from builder_service.sources.preflight import PICKLED, check_files, refuse_code, refuse_quantised
from builder_service.sources.safetensors_header import TensorInfo, read_header
from engine_store.manifest import Source
from enginehouse.errors import EnginehouseError, FailedPrecondition, NotFound

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


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
        refuse_code(path)
        refuse_quantised(self.config)
        index = read_index(path)
        shards = _shard_files(path, index)
        others = frozenset({"config.json", *_present(path, (INDEX, *TOKENIZER_FILES))})
        self.notes = check_files(path, frozenset(shards), others)
        self._tensors = _locate(path, shards, index)
        self._open: dict[str, TensorFile] = {}
        self._files = tuple(sorted({*shards, *others}))
        self.dtype = _dominant_dtype(located.info for located in self._tensors.values())
        self.origin = origin or Source(kind="huggingface", location=str(path))

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].info.shape

    def nbytes(self, name: str) -> int:
        info = self._tensors[name].info
        return info.end - info.begin

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        file, info = self._tensors[name]
        if file not in self._open:
            self._open[file] = TensorFile(self._path / file)
        return self._open[file].rows(info.begin, info.shape, getattr(torch, info.dtype))

    def tensor(self, name: str) -> torch.Tensor:
        return assemble(self.shape(name), self.blocks(name))

    def write_tokenizer(self, destination: Path) -> None:
        copy_tokenizer(self._path, destination)

    def digest(self, progress: Progress) -> str:
        return self._digests.tree(self._path, self._files, progress)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


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


def _present(path: Path, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if (path / name).is_file()]


def read_index(path: Path) -> dict[str, str] | None:
    """The file of each tensor, as the index says; None without an index."""
    index = read_unique_json(path, INDEX)
    if index is None:
        return None
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise broken("CHECKPOINT_CORRUPT", f"{INDEX} has no weight_map; download it again.", file=INDEX)
    return weight_map


def _shard_files(path: Path, index: dict[str, str] | None) -> list[str]:
    """The weight files: those of the index, or the single file."""
    if index is not None:
        return _indexed_shards(path, index)
    if (path / SINGLE).is_file():
        return [SINGLE]
    shards = sorted(file.name for file in path.glob("model-*.safetensors"))
    if shards:
        message = f"{path} has {shards[0]} and no {INDEX}, which says what the parts hold; download it."
        raise FailedPrecondition(message, reason="CHECKPOINT_NO_INDEX", metadata={"file": INDEX, "path": path})
    pickled = sorted(file.name for file in path.iterdir() if file.suffix in PICKLED)
    if pickled:
        message = (
            f"The checkpoint has only pickled weights ({pickled[0]}), which can run code when they are read and are "
            "refused; convert them to safetensors with transformers' save_pretrained."
        )
        raise FailedPrecondition(message, reason="PICKLED_WEIGHTS", metadata={"file": pickled[0]})
    message = f"{path} has neither {SINGLE} nor {INDEX}; download the checkpoint's weights."
    raise FailedPrecondition(message, reason="CHECKPOINT_NO_WEIGHTS", metadata={"path": path})


_MAX_NAME = 200  # file systems refuse to look for names above 255 bytes


def _indexed_shards(path: Path, index: dict[str, str]) -> list[str]:
    shards = sorted(set(index.values()))
    for shard in shards:
        if Path(shard).name != shard or len(shard) > _MAX_NAME or not shard.endswith(".safetensors"):
            message = f"{INDEX} names {shard[:80]!r}, which is no safetensors file beside it."
            raise broken("CHECKPOINT_CORRUPT", message, file=INDEX)
        if not (path / shard).is_file():
            message = f"{INDEX} names {shard}, which is missing; download it."
            raise broken("CHECKPOINT_MISSING_SHARD", message, file=shard)
    return shards


def _locate(path: Path, shards: list[str], index: dict[str, str] | None) -> dict[str, Located]:
    """Every tensor's place; the index and the shards must agree both ways."""
    tensors: dict[str, Located] = {}
    for shard in shards:
        for name, info in read_header(path / shard).items():
            if name in tensors:
                message = f"Tensor {name} is in both {tensors[name].file} and {shard}; remove one of the files."
                raise broken("CHECKPOINT_DUPLICATE_TENSOR", message, file=shard, tensor=name)
            tensors[name] = Located(shard, info)
    if index is not None:
        _check_index(index, tensors)
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


def _dominant_dtype(infos: Iterator[TensorInfo]) -> str:
    """The type that most bytes have: a float32 norm among bfloat16 matrices does not decide."""
    sizes: dict[str, int] = {}
    for info in infos:
        sizes[info.dtype] = sizes.get(info.dtype, 0) + info.end - info.begin
    return max(sizes, key=lambda dtype: sizes[dtype], default="float32")
