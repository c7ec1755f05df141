"""Both daemons, started as a user starts them, over one store; and a tiny random checkpoint."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from enginehouse import LLM
from tests.builder_service.conftest import make_tokenizer, random_model


@dataclass(frozen=True)
class Daemons:
    builder: str
    inference: str
    checkpoint: Path
    model: Any
    """The checkpoint as transformers' model, in float32."""


@pytest.fixture(scope="session")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    home = tmp_path_factory.mktemp("daemons")
    checkpoint, model = home / "models" / "Tiny-Llama", random_model("llama")
    model.save_pretrained(checkpoint)
    make_tokenizer(checkpoint)
    builder, inference = _free_port(), _free_port()
    store = ("--store", str(home / "store"))
    state = ("--state", str(home / "state"), "--root", str(checkpoint.parent), "--offline")
    with (
        _daemon("builder", builder, home / "builder.log", *store, *state),
        _daemon("inference", inference, home / "inference.log", *store, "--kv-cache-tokens", "4096"),
    ):
        yield Daemons(f"127.0.0.1:{builder}", f"127.0.0.1:{inference}", checkpoint, model)


@pytest.fixture(scope="session")
def llm(daemons: Daemons) -> Iterator[LLM]:
    """The checkpoint, built and loaded as "tiny-llama"."""
    with LLM(daemons.checkpoint, target=daemons.inference, builder=daemons.builder, dtype="float32") as client:
        yield client


@contextlib.contextmanager
def _daemon(name: str, port: int, log: Path, *arguments: str) -> Iterator[None]:
    with log.open("w") as out:
        command = [sys.executable, "-m", "enginehouse", name, "--port", str(port), *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 60
        while not _listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=40)
    assert process.returncode == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
