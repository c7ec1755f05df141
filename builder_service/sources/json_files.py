"""JSON files of a checkpoint, read with their size, depth and kind checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from builder_service.sources.base import broken, reading
from enginehouse.errors import EnginehouseError

MAX_JSON_BYTES = 64 << 20
MAX_DEPTH = 64
"""Of objects and lists within each other. What prints or walks a config recurses."""
LFS_POINTER = b"version https://git-lfs"


def lfs_pointer(name: str) -> EnginehouseError:
    """The refusal of a file that stands for another one."""
    message = f"{name} is a Git LFS pointer, not the file itself; run `git lfs pull` in the checkpoint's directory."
    return broken("CHECKPOINT_LFS_POINTER", message, file=name)


def is_lfs_pointer(path: Path) -> bool:
    """Whether the file is what Git leaves in place of one that was not pulled."""
    with reading(path.name), path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def read_json(path: Path, name: str) -> dict[str, Any] | None:
    """A JSON object of the checkpoint; None when the file is absent.

    Raises:
        FailedPrecondition: it is a Git LFS pointer, no JSON object, too large or too deep.
    """
    raw = _read(path / name)
    return None if raw is None else _decode(name, raw)


def _decode(name: str, raw: bytes) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"{name} is not a JSON object; download the checkpoint again."
        raise broken("CHECKPOINT_CORRUPT", message, file=name) from error
    _check_depth(name, content)
    return content


def read_unique_json(path: Path, name: str) -> dict[str, Any] | None:
    """`read_json` for a file whose keys are names of tensors: a key that is given twice is refused."""
    raw = _read(path / name)
    if raw is None:
        return None
    content = _decode(name, raw)
    try:
        decode_unique(raw)
    except ValueError as error:
        raise broken("CHECKPOINT_CORRUPT", f"{name} {error}; download it again.", file=name) from error
    return content


def decode_unique(raw: bytes) -> dict[str, Any]:
    """A JSON object in which no key is given twice, at any depth.

    Raises:
        ValueError: it is another value, or a key is given twice; the message continues "<file> ...".
    """
    try:
        content = json.loads(raw.decode(), object_pairs_hook=_unique)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    if not isinstance(content, dict):
        raise ValueError("is no JSON object")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"names {twice} twice")
    return content


def has_key(content: object, key: str) -> bool:
    """Whether an object at any depth has the key."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if key in value:
                return True
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return False


def _read(file: Path) -> bytes | None:
    if not file.is_file():
        return None
    if file.stat().st_size > MAX_JSON_BYTES:
        raise broken("CHECKPOINT_CORRUPT", f"{file.name} is larger than {MAX_JSON_BYTES} bytes.", file=file.name)
    with reading(file.name):
        raw = file.read_bytes()
    if raw.startswith(LFS_POINTER):
        raise lfs_pointer(file.name)
    return raw


def _check_depth(name: str, content: object) -> None:
    level: list[object] = [content]
    for _ in range(MAX_DEPTH):
        level = [item for value in level for item in _items(value)]
        if not level:
            return
    raise broken("CHECKPOINT_CORRUPT", f"{name} is nested more than {MAX_DEPTH} deep.", file=name)


def _items(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
