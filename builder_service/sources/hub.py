"""A checkpoint on the Hugging Face hub, downloaded into the builder's cache at one commit."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import HfApi, constants
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import validate_repo_id

from builder_service.build.tokenizer_files import TOKENIZER_FILES
from builder_service.job import SourceSpec
from builder_service.models import read_spec
from builder_service.sources.base import Progress, broken
from builder_service.sources.hub_cache import HubCache, HubFile, is_commit, is_inside
from builder_service.sources.hub_errors import translate
from builder_service.sources.hub_transfer import ATTEMPTS, PAUSE_SECONDS, Remote, fetch, is_transient
from builder_service.sources.huggingface import INDEX, SINGLE, read_config, read_index
from builder_service.sources.preflight import PICKLED, refuse_code, refuse_quantised
from enginehouse.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable

LISTING_SECONDS = 4.0
"""How long the hub may take to list a repository; with ATTEMPTS the end of patience is near ten seconds."""
POLL_SECONDS = 0.5
MAX_NAME = 512
STREAMS = 4
"""Files that are downloaded at once."""


class Download(NamedTuple):
    """What lies on disk: a directory, or a file for a GGUF source; the commit it belongs to; and the blobs among its
    files whose sha256 the hub stated."""

    path: Path
    commit: str
    digests: dict[Path, HubFile]


def download(spec: SourceSpec, cache: Path, offline: bool, progress: Progress, *, weights: bool = True) -> Download:
    """Fetches a repository's files, or one GGUF file, into the cache. Code and pickled files are never fetched, and
    weights only after the config says that the builder reads them. A commit that the cache holds needs no network.

    Args:
        spec: repository, revision (branch, tag or commit; empty: main), and a file for GGUF.
        cache: the hub cache of this builder.
        offline: use only what the cache holds.
        progress: called twice a second with the bytes that lie on disk and the bytes of all files.
        weights: False leaves the weights out.

    Raises:
        InvalidArgument: no repository id, revision or file name.
        NotFound: no such repository, revision or file; or, offline, not in the cache.
        PermissionDenied: a gated or private repository.
        Unavailable: the hub cannot be reached, or sends other bytes than it lists.
        ResourceExhausted: the files do not fit on the disk.
    """
    _check_names(spec)
    repository = _Repository(spec, HubCache(cache, spec.repo), offline, progress)
    try:
        path = repository.file(spec.file) if spec.file else repository.directory(weights)
    except Exception as error:
        raise translate(error, spec) from error
    return Download(path, repository.commit, repository.cache.known_digests(repository.commit))


def _check_names(spec: SourceSpec) -> None:
    try:
        validate_repo_id(spec.repo)
    except ValueError as error:
        raise translate(error, spec) from error
    for field, name in {"source.revision": spec.revision, "source.file": spec.file}.items():
        if name and (not is_inside(name) or len(name) > MAX_NAME):
            message = f"`{field}` {name!r} can be no name on the hub."
            raise InvalidArgument(message, reason="BAD_REPO_ID", metadata={"field": field})


class _Repository:
    """One repository at one commit."""

    def __init__(self, spec: SourceSpec, cache: HubCache, offline: bool, progress: Progress) -> None:
        self.cache = cache
        self.commit = ""
        self._spec, self._offline, self._progress = spec, offline, progress
        self._revision = spec.revision or constants.DEFAULT_REVISION

    def file(self, name: str) -> Path:
        """The path of one file."""
        files = self._files()
        if files is not None:
            if name not in files:
                message = f"{self._spec.repo} at {self._revision} has no file {name} on the hub."
                raise NotFound(message, reason="HUB_NOT_FOUND", metadata={"repo": self._spec.repo, "file": name})
            self._get([files[name]], [])
        path = self.cache.snapshot(self.commit) / name
        if not path.is_file():
            raise self._not_cached(name)
        return path

    def directory(self, weights: bool) -> Path:
        """The directory of a checkpoint."""
        files = self._files()
        path = self.cache.snapshot(self.commit)
        if files is not None:
            large = [file for name, file in files.items() if name.endswith(".safetensors")] if weights else []
            small = [file for name, file in files.items() if name in (INDEX, *TOKENIZER_FILES) or _is_config(name)]
            self._get(small, [file for file in large if file.name.startswith("model")])
            if weights:
                _refuse_early(path)
                self._get([*small, *_shards(path, files)], [])
        if not (path / "config.json").is_file() and self._offline:
            raise self._not_cached("config.json")
        return path

    def _files(self) -> dict[str, HubFile] | None:
        """The commit's files by name; None where nobody asked the hub and nobody may."""
        known = self.cache.commit_of(self._revision)
        if self._offline or is_commit(self._revision):
            self.commit = known or ""
            listing = self.cache.listing(self.commit) if known else None
            if self._offline and not known:
                raise self._not_cached("")
            if self._offline or listing is not None:
                return None if listing is None else {file.name: file for file in listing}
        self.commit, files = _ask(self._spec.repo, self._revision)
        self.cache.remember(self._revision, self.commit, files)
        return {file.name: file for file in files}

    def _get(self, files: Sequence[HubFile], later: Sequence[HubFile]) -> None:
        """Brings files into the snapshot; `later` counts for the progress alone."""
        missing = [file for file in files if not self.cache.blob(file).exists()]
        if missing and self._offline:
            raise self._not_cached(missing[0].name)
        with _watched(lambda: self._report([*files, *later])):
            self._transfer(missing)
        for file in files:
            self.cache.link(self.commit, file)

    def _transfer(self, files: Sequence[HubFile]) -> None:
        if not files:
            return
        blobs = self.cache.blob(files[0]).parent
        blobs.mkdir(parents=True, exist_ok=True)
        needed = sum(file.size - self.cache.present(file) for file in files)
        free = shutil.disk_usage(blobs).free
        if needed > free:
            message = f"The download needs {needed} bytes and the builder's cache has {free} free; free some space."
            metadata = {"needed_bytes": needed, "free_bytes": free}
            raise ResourceExhausted(message, reason="DISK_FULL", metadata=metadata)
        stop = threading.Event()
        pool = ThreadPoolExecutor(STREAMS)
        try:
            for _ in pool.map(lambda file: self._fetch(file, stop), files):
                pass
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)

    def _fetch(self, file: HubFile, stop: threading.Event) -> None:
        fetch(Remote(self._spec.repo, self.commit, file), self.cache.blob(file), stop)

    def _report(self, files: Sequence[HubFile]) -> None:
        self._progress(sum(map(self.cache.present, files)), sum(file.size for file in files))

    def _not_cached(self, name: str) -> NotFound:
        spec = self._spec
        what = f"{spec.repo} at {self._revision}" + (f", file {name}" if name else "")
        message = f"{what} is not in the builder's cache and the build is offline; build it once online."
        metadata = {"repo": spec.repo, "revision": self._revision, "file": name}
        return NotFound(message, reason="NOT_IN_CACHE", metadata=metadata)


def _is_config(name: str) -> bool:
    return name.endswith("config.json") and "/" not in name


def _refuse_early(path: Path) -> None:
    """What the config alone tells, before gigabytes are fetched."""
    config = read_config(path)
    refuse_code(path)
    refuse_quantised(config)
    read_spec(config)


def _shards(path: Path, files: dict[str, HubFile]) -> list[HubFile]:
    """The weight files: those of the index, or the single file."""
    index = read_index(path)
    if index is None and SINGLE not in files:
        pickled = sorted(name for name in files if name.endswith(PICKLED))
        reason = "PICKLED_WEIGHTS" if pickled else "CHECKPOINT_NO_WEIGHTS"
        what = f"only pickled weights ({pickled[0]}), which are never read" if pickled else "no safetensors weights"
        message = f"The repository has {what}; choose a repository or revision with {SINGLE}."
        raise FailedPrecondition(message, reason=reason, metadata={"file": pickled[0] if pickled else SINGLE})
    wanted = {SINGLE} if index is None else set(index.values())
    for name in sorted(wanted - files.keys()):
        raise broken("CHECKPOINT_MISSING_SHARD", f"{INDEX} names {name}, which the repository lacks.", file=name)
    return [files[name] for name in sorted(wanted)]


def _ask(repo: str, revision: str) -> tuple[str, list[HubFile]]:
    """The commit that a revision stands at, and its files."""
    failures = 0
    while True:
        try:
            info = HfApi(endpoint=constants.ENDPOINT, library_name="enginehouse").model_info(
                repo, revision=revision, files_metadata=True, timeout=LISTING_SECONDS
            )
            files = [_hub_file(sibling) for sibling in info.siblings or ()]
            if is_commit(info.sha or "") and all(file.valid() for file in files):
                return str(info.sha), files
            raise ValueError("a commit, a size or a digest is missing")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if not isinstance(error, OSError):  # the hub's own errors are OSErrors
                message = f"The answer about {repo} is none of a hub; check HF_ENDPOINT and the builder's network."
                raise Unavailable(message, reason="HUB_UNREACHABLE", metadata={"repo": repo}) from error
            raise
        except Exception as error:
            failures += 1
            if not is_transient(error) or failures == ATTEMPTS - 1:
                raise
            time.sleep(PAUSE_SECONDS)


def _hub_file(sibling: RepoSibling) -> HubFile:
    blob = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    return HubFile(sibling.rfilename, -1 if sibling.size is None else sibling.size, blob or "")


@contextmanager
def _watched(report: Callable[[], None]) -> Iterator[None]:
    """Reports now, every POLL_SECONDS, and at the end."""
    report()
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(POLL_SECONDS):
            report()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    report()
