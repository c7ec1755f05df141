"""The `tokenizer/` directory of an engine version: tokenizer.json, its configs, the chat template."""

from __future__ import annotations

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
    from builder_service.sources.base import reading  # loads torch, which who only needs the names does without

    for name in COPIED:
        if (source / name).is_file():
            with reading(name):
                content = (source / name).read_bytes()
            (destination / name).write_bytes(content)
    if not (source / "tokenizer.json").is_file() and any((source / name).is_file() for name in SLOW):
        _convert(source, destination)
    if has_tokenizer(destination):
        _check(destination / "tokenizer.json")


def _check(path: Path) -> None:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(path)).encode("a")  # a template that names a second text fails only here
    except BaseException as error:  # the library raises plain Exception, and panics with a BaseException
        if not is_library_error(error):
            raise
        message = "The checkpoint's tokenizer.json cannot be read; download it again."
        raise FailedPrecondition(message, reason="TOKENIZER_UNREADABLE", metadata={"file": path.name}) from error


def is_library_error(error: BaseException) -> bool:
    """Whether a library written in Rust failed; anything else passes through (a signal, the interpreter's end)."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _convert(source: Path, destination: Path) -> None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(source), local_files_only=True, trust_remote_code=False)
        tokenizer.save_pretrained(str(destination))
    except BaseException as error:
        if not is_library_error(error):
            raise
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
