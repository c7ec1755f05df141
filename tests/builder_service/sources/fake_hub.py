"""A hub on the loopback device: the part of its HTTP interface that a download uses, with faults to order."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".gguf", ".bin", "tokenizer.json")
"""Names of files that are stored by their sha256; others by git's sha1."""


@dataclass
class Fault:
    """What goes wrong. `status` answers everything under `path_has`; `drop_after` closes the connection of a large file
    after so many bytes (-1: before the first), `drops` times; `bytes_per_second` slows large files; `lies` sends
    other bytes."""

    status: int = 0
    code: str = ""
    path_has: str = ""
    drop_after: int = 0
    drops: int = 0
    bytes_per_second: int = 0
    lies: bool = False
    ignores_range: bool = False


class Repository:
    """Commits of files; `main` is a branch."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.branches: dict[str, str] = {}

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        digest = hashlib.sha1(str(len(self.commits)).encode()).hexdigest()
        self.commits[digest] = files
        self.branches[branch] = digest
        return digest

    def find(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision)


@dataclass
class Request:
    method: str
    path: str
    range: str | None
    token: str | None
    by_cdn: bool
    sent: int = 0


@dataclass
class FakeHub:
    """`url` is its endpoint. With `cdn`, large files are redirected to another port, as the hub does."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    fault: Fault = field(default_factory=Fault)
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    cdn: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, directory: Path) -> str:
        """A new commit of a repository with the files of a directory."""
        files = {str(f.relative_to(directory)): f.read_bytes() for f in directory.rglob("*") if f.is_file()}
        return self.repositories.setdefault(name, Repository()).commit(files)

    def gets(self, part: str) -> list[Request]:
        """The requests for the content of files whose path contains `part`."""
        return [r for r in self.requests if part in r.path and "/resolve/" in r.path and r.method == "GET"]


def blob_id(name: str, content: bytes) -> str:
    if name.endswith(LARGE):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _sibling(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": "0" * 40}
    if name.endswith(LARGE):
        return {**entry, "lfs": {"sha256": blob_id(name, content), "size": len(content), "pointerSize": 130}}
    return {**entry, "blobId": blob_id(name, content)}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub
    is_cdn = False

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        headers = self.headers
        seen = Request(self.command, path, headers.get("Range"), headers.get("Authorization"), self.is_cdn)
        with self.hub.lock:
            self.hub.requests.append(seen)
        fault = self.hub.fault
        if fault.status and fault.path_has in path:
            self._error(fault.status, fault.code)
        elif path.startswith("/api/models/"):
            self._info(path.removeprefix("/api/models/"))
        else:
            self._resolve(path.removeprefix("/"), seen, body)

    def _info(self, path: str) -> None:
        name, _, revision = path.partition("/revision/")
        repository = self.hub.repositories.get(name)
        commit = repository.find(revision or "main") if repository else None
        if repository is None or commit is None:
            self._error(404, "RevisionNotFound" if repository else "RepoNotFound")
            return
        siblings = [_sibling(file, content) for file, content in sorted(repository.commits[commit].items())]
        raw = json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _resolve(self, path: str, seen: Request, body: bool) -> None:
        name, _, rest = path.partition("/resolve/")
        revision, _, file = rest.partition("/")
        repository = self.hub.repositories.get(name)
        commit = repository.find(revision) if repository else None
        if repository is None or commit is None or file not in repository.commits[commit]:
            self._error(404, "EntryNotFound" if commit else "RepoNotFound")
            return
        content = repository.commits[commit][file]
        if self.hub.cdn and not self.is_cdn and file.endswith(LARGE):
            self.send_response(302)
            self.send_header("Location", self.hub.cdn + self.path)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._send(file, commit, content, seen, body)

    def _send(self, file: str, commit: str, content: bytes, seen: Request, body: bool) -> None:
        fault, start = self.hub.fault, 0
        if seen.range and not fault.ignores_range:
            start = int(seen.range.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{blob_id(file, content)}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if body:
            sent = bytes(len(content)) if fault.lies else content
            self._write(file, memoryview(sent)[start:], seen)

    def _write(self, file: str, data: memoryview, seen: Request) -> None:
        fault, large = self.hub.fault, file.endswith((".safetensors", ".gguf"))
        step = max(1, fault.bytes_per_second // 20) if fault.bytes_per_second and large else max(1, len(data))
        if large and fault.drop_after > 0:
            step = min(step, fault.drop_after)
        for begin in range(0, len(data), step):
            if large and fault.drops and fault.drop_after and begin >= fault.drop_after:
                fault.drops -= 1
                self.close_connection = True
                self.connection.close()
                return
            try:
                self.wfile.write(data[begin : begin + step])
            except OSError:  # the client went away
                return
            seen.sent += len(data[begin : begin + step])
            if fault.bytes_per_second and large:
                time.sleep(0.05)

    def _error(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serve_hub(with_cdn: bool = False) -> Iterator[FakeHub]:
    """A hub that runs until the block ends."""
    hub = FakeHub()
    handlers = [type("Hub", (_Handler,), {"hub": hub}), type("Cdn", (_Handler,), {"hub": hub, "is_cdn": True})]
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in handlers[: 1 + with_cdn]]
    hub.url, hub.cdn = [f"http://127.0.0.1:{server.server_port}" for server in servers] + [""] * (not with_cdn)
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
