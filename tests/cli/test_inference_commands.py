"""`enginehouse models|generate` against a scripted inference daemon over real sockets; and how the daemons start."""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.client.scripted import ScriptedServer


def test_models(at_inference: Run, inference: ScriptedServer) -> None:
    assert "tiny@1" in at_inference("models", "list").out
    assert at_inference("models", "list", "--json").json[0]["state"] == "ready"
    options = ("--name", "b", "--max-batch-size", "4", "--kv-cache-tokens", "64", "--policy", "MAX_UTILIZATION")
    assert "Loaded other@3 as b" in at_inference("models", "load", "other@3", *options).out
    load = inference.models.loads[0]
    assert (load.engine, load.version, load.model) == ("other", 3, "b")
    assert (load.limits.max_batch_size, load.kv_cache.max_tokens) == (4, 64)
    assert "ready" in at_inference("models", "show", "tiny").out
    assert at_inference("models", "unload", "b").out == "Unloaded b\n"
    assert at_inference("models", "show", "b").err == "Error: Model b is not served.\n"


def test_generate(at_inference: Run) -> None:
    done = at_inference("generate", "echo", "--model", "tiny", "--max-tokens", "3")
    assert (done.code, done.out, done.err) == (0, " t0 t1 t2\n", "")


def test_generate_streams(at_inference: Run) -> None:
    assert at_inference("generate", "echo", "--stream", "--max-tokens", "3").out == " t0 t1 t2\n"


def test_generate_json(at_inference: Run) -> None:
    found = at_inference("generate", "echo", "--max-tokens", "2", "--json").json
    assert (found["text"], found["token_ids"], found["finish_reason"]) == (" t0 t1", [100, 101], "length")
    assert found["usage"]["completion_tokens"] == 2
    lines = at_inference("generate", "echo", "--max-tokens", "2", "--json", "--stream").out.splitlines()
    parts = [json.loads(line) for line in lines]
    assert "".join(part["text"] for part in parts[:-1]) == parts[-1]["text"] == " t0 t1"


def test_generate_chats(at_inference: Run, inference: ScriptedServer) -> None:
    at_inference("generate", "echo", "--chat", "--system", "be brief", "--stop", "x", "--temperature", "0.5")
    start = inference.inference.starts[0]
    assert [(message.role, message.content) for message in start.chat.messages] == [
        ("system", "be brief"),
        ("user", "echo"),
    ]
    assert (list(start.sampling.stop), start.sampling.temperature) == (["x"], 0.5)


def test_generate_reads_standard_input(at_inference: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("echo"))
    assert at_inference("generate", "-", "--max-tokens", "1").out == " t0\n"


def test_generate_without_a_model_needs_exactly_one(at_inference: Run) -> None:
    at_inference("models", "load", "other")
    assert at_inference("generate", "echo").err == "Error: Say which model with --model: other, tiny.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("generate", "refuse"), 1, "The prompt is refused."),
        (("generate", "refuse", "--stream"), 1, "The prompt is refused."),
        (("generate", "echo", "--model", "none"), 1, "not served"),
        (("generate", "echo", "--top-k", "-1"), 2, "top_k must be at least 0"),
        (("generate", "echo", "--system", "x"), 2, "--system needs --chat"),
        (("generate", "echo", "--target", "http://x"), 2, "HOST:PORT"),
        (("--ca-cert", "/none.pem", "models", "list"), 2, "cannot read /none.pem"),
        (("models", "load", "Bad Name"), 1, "is not an engine"),
        (("inference", "--device", "tpu"), 2, "give auto, cpu or cuda"),
        (("inference", "--dtype", "int8"), 2, "give auto, float32, bfloat16 or float16"),
        (("inference", "--policy", "FIRST"), 2, "give GUARANTEED_NO_EVICT, MAX_UTILIZATION or STATIC_BATCH"),
        (("inference", "--log-level", "loud"), 2, "give debug, info, warning or error"),
    ],
)
def test_mistakes_get_one_plain_line(at_inference: Run, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = at_inference(*arguments)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert "Traceback" not in done.err


def test_an_interrupt_exits_quietly_with_130(inference: ScriptedServer) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and their children, ignore it
    command = [sys.executable, "-m", "enginehouse", "generate", "slow", "--stream", "--target", inference.target]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.read(1) == " "
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "")
    assert out.endswith("\n"), "the shell's prompt has a line of its own"


def test_the_module_runs_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "enginehouse", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("enginehouse 0.")


def test_a_busy_port_ends_with_one_plain_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for daemon, options in (("builder", ("--state", str(tmp_path / "state"))), ("inference", ())):
            command = [sys.executable, "-m", "enginehouse", daemon, "--store", str(tmp_path / "store"), "--port", port]
            done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 1
            last = done.stderr.splitlines()[-1]
            assert last.startswith("Error: ")
            assert port in last
            assert "Traceback" not in done.stderr


@pytest.mark.parametrize("daemon", ["builder", "inference"])
def test_a_daemon_starts_and_stops(daemon: str, tmp_path: Path, unused_tcp_port: int) -> None:
    options = {"builder": ["--state", str(tmp_path / "state"), "--root", str(tmp_path)], "inference": []}[daemon]
    address = ["--store", str(tmp_path / "store"), "--port", str(unused_tcp_port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "enginehouse", daemon, *address, *options], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", unused_tcp_port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "Traceback" not in err
