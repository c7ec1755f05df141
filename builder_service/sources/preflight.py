"""What a checkpoint's directory may hold, checked before any tensor is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builder_service.sources.base import broken
from builder_service.sources.json_files import has_key, is_lfs_pointer, lfs_pointer, read_json
from enginehouse.errors import Unimplemented

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5")
QUIET = frozenset({"README.md", "LICENSE", "LICENSE.txt", "USE_POLICY.md", ".gitattributes", ".gitignore"})
SECOND_COPY = "consolidated"
"""Mistral publishes its weights a second time, in a form of its own, as consolidated*.safetensors."""
MAX_FILES = 10_000
MAX_USED_BYTES = 1 << 28
"""Of one tokenizer file: several times the largest known."""


def refuse_code(path: Path) -> None:
    """Refuses a checkpoint any of whose configs asks for Python code of its own.

    Raises:
        Unimplemented: REMOTE_CODE, with the file.
    """
    for name in _listed(path):
        if not name.endswith("config.json"):
            continue
        if has_key(read_json(path, name), "auto_map"):
            message = f"{name} asks for Python code of its own (auto_map); the builder never runs a checkpoint's code."
            raise Unimplemented(message, reason="REMOTE_CODE", metadata={"file": name, "field": "auto_map"})


def refuse_quantised(config: dict[str, Any]) -> None:
    """Refuses a checkpoint whose config.json says that its weights are quantised."""
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else "unknown"
        message = f"The checkpoint is quantised ({method}), which is not read yet; use the unquantised checkpoint."
        raise Unimplemented(message, reason="UNSUPPORTED_QUANTIZATION", metadata={"method": method})


def check_files(path: Path, weights: frozenset[str], others: frozenset[str]) -> tuple[str, ...]:
    """Checks the directory's names against the files that are used: `weights`, and `others` (JSON, tokenizer).

    Returns:
        Lines for a person, on files that are left out.

    Raises:
        FailedPrecondition: CHECKPOINT_STRAY_FILE, CHECKPOINT_DUPLICATE_FILE, CHECKPOINT_LFS_POINTER,
            CHECKPOINT_CORRUPT; each names the file.
    """
    names = _listed(path)
    used = weights | others
    _refuse_twins(names, used)
    for name in sorted(others):
        if is_lfs_pointer(path / name):
            raise lfs_pointer(name)
        if (path / name).stat().st_size > MAX_USED_BYTES:
            raise broken("CHECKPOINT_CORRUPT", f"{name} is larger than {MAX_USED_BYTES} bytes.", file=name)
    for name in names:
        if name not in used and name.endswith(".safetensors") and not name.startswith(SECOND_COPY):
            message = (
                f"{name} holds weights that the checkpoint's {_explains(weights)} does not name: it may be of another "
                "checkpoint. Remove it, or complete the index."
            )
            raise broken("CHECKPOINT_STRAY_FILE", message, file=name)
    return tuple(_notes(path, names, used))


def _listed(path: Path) -> list[str]:
    names = sorted(entry.name for entry in path.iterdir())
    if len(names) > MAX_FILES:
        message = f"{path.name} holds {len(names)} files; a checkpoint has at most {MAX_FILES}."
        raise broken("CHECKPOINT_CORRUPT", message, files=len(names))
    return names


def _refuse_twins(names: list[str], used: frozenset[str]) -> None:
    """Two names that differ in case alone are one file on some machines, and which one is chance."""
    wanted = {name.casefold(): name for name in used}
    for name in names:
        twin = wanted.get(name.casefold(), name)
        if twin != name:
            message = f"{name} and {twin} differ in upper and lower case alone; remove the one that is not meant."
            raise broken("CHECKPOINT_DUPLICATE_FILE", message, file=name, other=twin)


def _explains(weights: frozenset[str]) -> str:
    return next(iter(weights)) if len(weights) == 1 else "index"


def _notes(path: Path, names: list[str], used: frozenset[str]) -> Iterator[str]:
    for name in names:
        if name in used or name in QUIET or not (path / name).is_file():
            continue
        if name.startswith(SECOND_COPY) and name.endswith(".safetensors"):
            yield f"{name} is a second copy of the weights and was left out."
        elif name.endswith(PICKLED):
            yield f"{name} is pickled, which is never read, and was left out."
        else:
            yield f"{name} is not part of the checkpoint and was left out."
