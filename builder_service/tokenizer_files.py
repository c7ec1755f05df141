"""The `tokenizer/` directory of an engine version: tokenizer.json, its configs, the chat template."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from enginehouse.errors import FailedPrecondition

GENERATION_CONFIG = "generation_config.json"
COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    GENERATION_CONFIG,
)
SLOW = ("tokenizer.model", "vocab.json", "merges.txt")
"""From these transformers makes a tokenizer.json."""
TOKENIZER_FILES = (*COPIED, *SLOW)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON object, indented, so that a person can read it."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def copy_tokenizer(source: Path, destination: Path) -> None:
    """Copies a checkpoint's tokenizer files; makes tokenizer.json where the checkpoint has only the older forms.

    Raises:
        FailedPrecondition: tokenizer.json is damaged, or the older form cannot be converted.
    """
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)
    if not (source / "tokenizer.json").is_file() and any((source / name).is_file() for name in SLOW):
        _convert(source, destination)
    if has_tokenizer(destination):
        _check(destination / "tokenizer.json")


def _check(path: Path) -> None:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        pointer = path.read_bytes()[:8] == b"version "
        what = "is a Git LFS pointer; run `git lfs pull`" if pointer else "cannot be read; download it again"
        message = f"The checkpoint's tokenizer.json {what}."
        raise FailedPrecondition(message, reason="TOKENIZER_UNREADABLE", metadata={"file": path.name}) from error


def _convert(source: Path, destination: Path) -> None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(source), local_files_only=True, trust_remote_code=False)
        tokenizer.save_pretrained(str(destination))
    except Exception as error:
        message = (
            "The checkpoint has no tokenizer.json and its older tokenizer files cannot be converted; save the "
            "tokenizer with transformers' save_pretrained and build again."
        )
        raise FailedPrecondition(message, reason="TOKENIZER_UNREADABLE") from error
    if not (destination / "tokenizer.json").is_file():
        message = "The checkpoint's tokenizer has no fast form; save one as tokenizer.json beside the weights."
        raise FailedPrecondition(message, reason="TOKENIZER_UNREADABLE")


def has_tokenizer(directory: Path) -> bool:
    """Whether the directory can turn text into ids."""
    return (directory / "tokenizer.json").is_file()
