"""A checkpoint on the Hugging Face hub, downloaded into the builder's cache at one commit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from builder_service.job import SourceSpec
from builder_service.sources.base import Progress
from builder_service.tokenizer_files import TOKENIZER_FILES
from enginehouse.errors import EnginehouseError, InvalidArgument, NotFound, PermissionDenied, Unavailable

PATTERNS = ["config.json", "*.safetensors", "model.safetensors.index.json", *TOKENIZER_FILES]
"""No code, no pickled weights: they are never downloaded. `*` does not match files in sub-directories' own copies
(`original/`), which are left out as well."""
IGNORED = ["*/*"]
POLL_SECONDS = 0.5


class Download(NamedTuple):
    """What lies on disk: a directory, or a file for a GGUF source; and the commit it belongs to."""

    path: Path
    commit: str


def download(spec: SourceSpec, cache: Path, offline: bool, progress: Progress) -> Download:
    """Fetches a repository's files, or one GGUF file, into the cache.

    Args:
        spec: repository, revision (branch, tag or commit; empty: main), and a file for GGUF.
        cache: the hub cache of this builder.
        offline: use only what the cache holds.
        progress: called twice a second with (bytes added to the cache, 0), the whole being unknown.

    Raises:
        InvalidArgument: no repository id.
        NotFound: no such repository, revision or file; or, offline, not in the cache.
        PermissionDenied: a gated or private repository.
        Unavailable: the hub cannot be reached.
    """
    try:
        with _watched(cache, progress):
            path = _fetch(spec, cache, offline)
    except Exception as error:
        raise _translate(error, spec, offline) from error
    return Download(path, _commit(path))


def _fetch(spec: SourceSpec, cache: Path, offline: bool) -> Path:
    revision = spec.revision or None
    if spec.file:
        file = hf_hub_download(spec.repo, spec.file, revision=revision, cache_dir=cache, local_files_only=offline)
        return Path(file)
    directory = snapshot_download(
        spec.repo,
        revision=revision,
        cache_dir=cache,
        local_files_only=offline,
        allow_patterns=PATTERNS,
        ignore_patterns=IGNORED,
    )
    return Path(directory)


@contextmanager
def _watched(directory: Path, progress: Progress) -> Iterator[None]:
    """Reports how much the directory has grown."""
    before, stop = _size(directory), threading.Event()

    def watch() -> None:
        while not stop.wait(POLL_SECONDS):
            progress(max(0, _size(directory) - before), 0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _size(directory: Path) -> int:
    total = 0
    for file in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # renamed when its download ended
            total += 0 if file.is_symlink() else file.stat().st_size
    return total


def _commit(path: Path) -> str:
    """The commit in `.../snapshots/<commit>/...`."""
    parts = path.parts
    return parts[len(parts) - 1 - parts[::-1].index("snapshots") + 1]


def _translate(error: Exception, spec: SourceSpec, offline: bool) -> Exception:
    """The typed error for a failure of the hub's client; any other exception is returned as it is."""
    revision = spec.revision or "main"
    facts = {"repo": spec.repo, "revision": revision, "file": spec.file}
    what = f"{spec.repo} at {revision}" + (f", file {spec.file}" if spec.file else "")
    answer: EnginehouseError | None = None
    if isinstance(error, HFValidationError):
        answer = InvalidArgument(f"{spec.repo!r} is no hub repository id; give `owner/name`.", reason="BAD_REPO_ID")
    elif isinstance(error, LocalEntryNotFoundError) and offline:
        message = f"{what} is not in the builder's cache and the build is offline; build it once online."
        answer = NotFound(message, reason="NOT_IN_CACHE", metadata=facts)
    elif isinstance(error, GatedRepoError):
        message = f"{spec.repo} is gated; accept its terms on the hub and give the builder a token in HF_TOKEN."
        answer = PermissionDenied(message, reason="HUB_GATED", metadata=facts)
    elif isinstance(error, RepositoryNotFoundError | RevisionNotFoundError):
        message = f"The hub has no {what}, or it is private; check the name, or give the builder a token in HF_TOKEN."
        answer = NotFound(message, reason="HUB_NOT_FOUND", metadata=facts)
    elif isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        answer = NotFound(f"{what} does not exist on the hub.", reason="HUB_NOT_FOUND", metadata=facts)
    elif isinstance(error, LocalEntryNotFoundError | HfHubHTTPError | HTTPError):
        message = f"The hub cannot be reached for {what}; check the builder's network, or build from a local path."
        answer = Unavailable(message, reason="HUB_UNREACHABLE", metadata=facts)
    return answer or error
