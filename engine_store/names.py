"""Names that become paths. Every name from outside passes one of these checks before it is joined to anything."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

from enginehouse.errors import DataLoss, InvalidArgument

_RESOURCE_ID = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_FILE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
MAX_VERSION = 2**31 - 1


class VersionRef(NamedTuple):
    """One version of one engine, by name."""

    engine: str
    version: int


def is_id(value: str) -> bool:
    """Whether `value` is a resource id: an engine's or an alias's."""
    return _RESOURCE_ID.fullmatch(value) is not None


def check_id(value: str, field: str) -> str:
    """`value` when it is a resource id; else InvalidArgument that names `field`."""
    if not is_id(value):
        raise InvalidArgument(
            f"`{field}` is {value[:80]!r}; use 1 to 63 lower-case letters, digits and hyphens, starting with a letter.",
            reason="INVALID_RESOURCE_ID",
            metadata={"field": field, "value": value[:80]},
        )
    return value


def check_version(value: int) -> int:
    """`value` when it can be a version's number (from 1)."""
    if not 1 <= value <= MAX_VERSION:
        raise InvalidArgument(
            f"{value} is no version; versions count from 1.", reason="INVALID_VERSION", metadata={"version": value}
        )
    return value


def is_number(name: str) -> bool:
    """Whether the name of an entry is a version's or a record's number."""
    return name.isascii() and name.isdigit()


def is_file_path(path: str) -> bool:
    """Whether `path` may name a file of a version: relative, plain parts, at most 8 of them."""
    parts = path.split("/")
    return len(parts) <= 8 and all(_FILE_PART.fullmatch(part) for part in parts) and ".." not in parts


def check_file_path(path: str) -> PurePosixPath:
    """The path of a manifest's file; DataLoss when a manifest holds one that could lead elsewhere."""
    if not is_file_path(path):
        raise DataLoss(
            f"The manifest lists the file {path[:80]!r}, which is no plain relative path; build the engine again.",
            reason="MANIFEST_PATH",
            metadata={"path": path[:80]},
        )
    return PurePosixPath(path)
