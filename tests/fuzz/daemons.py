"""Both daemons as processes of their own, over one store with tiny engines, and what the system says about them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc
import msgspec
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from builder_service.build.pipeline import run_build
from builder_service.job import BuildConfig, BuildJob, SourceSpec
from engine_store import EngineStore
from enginehouse.errors import EnginehouseError
from tests.builder_service.conftest import make_tokenizer, random_model
from tests.builder_service.gguf_files import numbered_tokens, write_gguf_file

ROOT = Path(__file__).parents[2]
CANARY = "canary-c0ffee"
"""An engine and a model that no message names, so that its answers never change."""
PREY = "prey"
START_SECONDS, END_SECONDS = 90.0, 60.0


class Home(NamedTuple):
    """Directories of the daemons, and what lies in them."""

    path: Path

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def checkpoint(self) -> Path:
        return self.models / "tiny"

    @property
    def gguf(self) -> Path:
        return self.models / "tiny.gguf"

    @property
    def store(self) -> EngineStore:
        return EngineStore(self.path / "store")


def make_home(path: Path) -> Home:
    """A checkpoint, its GGUF form, and a store with one engine twice: the canary and the prey."""
    home = Home(path)
    home.models.mkdir(parents=True)
    model = random_model("llama")
    model.save_pretrained(home.checkpoint)
    make_tokenizer(home.checkpoint)
    write_gguf_file(model, home.gguf, tokens=numbered_tokens(model))
    job = BuildJob(
        engine_id=CANARY,
        store=str(home.store.root),
        cache=str(path / "cache"),
        source=SourceSpec(kind="huggingface", path=str(home.checkpoint)),
        build=BuildConfig(dtype="float32", tokens_per_block=16),
        verify="off",
    )
    run_build(job, lambda event: None)
    restock(home.store)
    return home


def restock(store: EngineStore) -> None:
    """Publishes the prey again, from the canary, when it was deleted; with the alias that it had."""
    if not store.version_numbers(PREY):
        manifest = store.get(CANARY, 1)
        with store.stage() as staging:
            shutil.copytree(store.version_path(CANARY, 1), staging.path, dirs_exist_ok=True)
            (staging.path / "engine.json").unlink()
            staging.publish(msgspec.structs.replace(manifest, name=PREY, version=0, files=()), force=True)
    with contextlib.suppress(EnginehouseError):
        store.set_alias(PREY, "stable", store.version_numbers(PREY)[0])


class Usage(NamedTuple):
    """What a process holds. `rss` in bytes; `children` counts its descendants."""

    rss: int
    fds: int
    threads: int
    children: int


@dataclass
class Process:
    """A daemon that runs."""

    name: str
    child: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def alive(self) -> bool:
        return self.child.poll() is None

    def files(self) -> Counter[str]:
        """What its open file descriptors are, by kind or path."""
        found: Counter[str] = Counter()
        for fd in Path(f"/proc/{self.child.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found[re.sub(r"\[\d+\]", "", os.readlink(fd))] += 1
        found.update(f"socket {each.status}" for each in psutil.Process(self.child.pid).net_connections("tcp"))
        return found

    def usage(self) -> Usage:
        process = psutil.Process(self.child.pid)
        with process.oneshot():
            return Usage(
                process.memory_info().rss, process.num_fds(), process.num_threads(), len(process.children(True))
            )


@contextlib.contextmanager
def daemons(home: Home) -> Iterator[dict[str, Process]]:
    """Both, listening; killed at the end."""
    common = ["--store", str(home.store.root), "--log-level", "info"]
    builder = [*common, "--state", str(home.path / "builder"), "--root", str(home.models), "--offline"]
    builder += ["--max-queued-builds", "6", "--memory-limit-gib", "2"]
    inference = [*common, "--model", f"{CANARY}@1", "--model", f"{PREY}@1", "--kv-cache-tokens", "2048"]
    inference += ["--threads", "1", "--device", "cpu", "--dtype", "float32", "--max-queue-size", "64"]
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(_running(name, arguments, home.path / f"{name}.log"))
            for name, arguments in (("builder", builder), ("inference", inference))
        }


@contextlib.contextmanager
def _running(name: str, arguments: list[str], log: Path) -> Iterator[Process]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "enginehouse", name, "--port", str(port), *arguments],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        yield Process(name, child, port, log)
    finally:
        child.terminate()
        try:
            child.wait(END_SECONDS)
        finally:
            child.kill()
            child.wait()


def wait_serving(process: Process) -> None:
    """Returns once its health says SERVING."""
    until = time.monotonic() + START_SECONDS
    with grpc.insecure_channel(process.address) as channel:
        while time.monotonic() < until and process.alive():
            with contextlib.suppress(grpc.RpcError):
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            time.sleep(0.1)
    raise AssertionError(f"the {process.name} daemon does not serve: {process.log.read_text()[-2000:]}")
