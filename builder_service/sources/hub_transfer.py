"""One file from the hub to the disk: resumed where an earlier attempt stopped, checked against its digest.

The hub's own client starts a file again when its process was killed, which is why this is ours.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import quote

from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from builder_service.sources.hub_cache import HubFile, part
from enginehouse.errors import Cancelled, EnginehouseError, Unavailable

TIMEOUT_SECONDS = 5.0
"""Until a connection stands, and between two pieces of an answer."""
ATTEMPTS = 3
"""Without a byte between them."""
PAUSE_SECONDS = 0.5
CHUNK = 1 << 20
constants.HF_HUB_DISABLE_TELEMETRY = True  # or each header asks the hub what kind of agent runs its client
AGAIN = (408, 429, 500, 502, 503, 504)


class Remote(NamedTuple):
    """A file at a commit of a repository."""

    repo: str
    commit: str
    file: HubFile

    def url(self) -> str:
        """Where the hub serves it, or says who does."""
        return f"{constants.ENDPOINT}/{self.repo}/resolve/{self.commit}/{quote(self.file.name)}"


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, HfHubHTTPError):
        return error.response is not None and error.response.status_code in AGAIN
    return isinstance(error, HTTPError)


def fetch(remote: Remote, blob: Path, stop: threading.Event) -> None:
    """Downloads a file to `blob`, after the bytes that lie beside it already. Safe for several processes: one
    downloads, the others wait.

    Raises:
        Unavailable: the bytes are not those that the hub listed; they were removed.
        Cancelled: `stop` was set.
        HTTPError: the hub's client failed several times in a row; what came is kept for the next time.
        OSError: the disk.
    """
    blob.parent.mkdir(parents=True, exist_ok=True)
    if blob.exists():
        return
    with part(blob).open("ab") as file:
        _lock(file, stop)
        if blob.exists():
            part(blob).unlink(missing_ok=True)
            return
        _complete(remote, file, stop)
        _check(remote.file, part(blob))
        os.fsync(file.fileno())
        part(blob).replace(blob)


def _lock(file: BinaryIO, stop: threading.Event) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _wait(stop, PAUSE_SECONDS)
        else:
            return


def _wait(stop: threading.Event, seconds: float) -> None:
    if stop.wait(seconds):
        raise Cancelled("The download was stopped.", reason="DOWNLOAD_STOPPED")


def _complete(remote: Remote, file: BinaryIO, stop: threading.Event) -> None:
    failures = 0
    while (before := file.seek(0, os.SEEK_END)) < remote.file.size:
        try:
            _append(remote, file, stop)
        except HTTPError as error:
            failures = 1 if file.seek(0, os.SEEK_END) > before else failures + 1
            if not is_transient(error) or failures >= ATTEMPTS:
                raise
            _wait(stop, PAUSE_SECONDS * failures)


def _append(remote: Remote, file: BinaryIO, stop: threading.Event) -> None:
    have = file.seek(0, os.SEEK_END)
    headers = {**build_hf_headers(library_name="enginehouse"), "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with get_session().stream("GET", remote.url(), headers=headers, timeout=TIMEOUT_SECONDS) as response:
        hf_raise_for_status(response)
        if have and response.status_code != 206:  # the whole file comes
            file.truncate(0)
            have = 0
        for chunk in response.iter_raw():
            _wait(stop, 0)
            have += len(chunk)
            if have > remote.file.size:
                break
            file.write(chunk)
            file.flush()
    if have > remote.file.size:
        raise _differs(remote.file, Path(file.name))


def _check(file: HubFile, path: Path) -> None:
    large = len(file.blob) == hashlib.sha256().digest_size * 2
    digest = hashlib.sha256() if large else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != file.blob:
        raise _differs(file, path)


def _differs(file: HubFile, path: Path) -> EnginehouseError:
    path.unlink(missing_ok=True)
    message = f"What the hub sent as {file.name} is not the file that it lists; build again to download it again."
    return Unavailable(message, reason="HUB_CORRUPT", metadata={"file": file.name})
