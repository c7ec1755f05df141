"""Factories of the store's tests, and what their other processes do.

Those come from a fork server that has this module loaded: quick, and safe whatever threads pytest has.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from multiprocessing.queues import Queue
from pathlib import Path

from engine_store import EngineStore, Manifest, Published
from engine_store.manifest import SCHEMA, Limits, Source, Target
from engine_store.owner import new_token

BIG = 3 << 20
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])


def manifest(engine: str = "tiny", key: str = "k1") -> Manifest:
    return Manifest(
        schema=SCHEMA,
        name=engine,
        version=0,
        build_key=key,
        create_time="2026-01-01T00:00:00Z",
        architecture="LlamaForCausalLM",
        opset=1,
        vocab_size=101,
        eos_token_ids=(2,),
        source=Source(kind="dummy", location="none"),
        targets=(Target(form="torch", dtype="float32", build_key=key),),
        limits=Limits(max_batch_size=4, max_num_tokens=64, max_seq_len=128),
    )


def fill(folder: Path, key: str, size: int = BIG) -> None:
    """Files whose content depends on the key alone."""
    (folder / "weights").mkdir()
    (folder / "graph.json").write_text(f'{{"key": "{key}"}}')
    (folder / "weights" / "rank0.safetensors").write_bytes(key.encode().ljust(64, b".") * (size // 64))


def publish(
    store: EngineStore, engine: str = "tiny", key: str = "k1", *, force: bool = False, size: int = BIG
) -> Published:
    with store.stage() as staging:
        fill(staging.path, key, size)
        return staging.publish(manifest(engine, key), force=force)


def dead_token() -> str:
    """The token of a process of this machine that is gone."""
    boot, namespace, _, _, rest = new_token().split(".")
    return f"{boot}.{namespace}.999999999.1.{rest}"


def die_at(step: int | str) -> Callable[[str], None]:
    """A failpoint that kills the process with SIGKILL at its step-th label, or at the label `step`."""
    seen = 0

    def failpoint(label: str) -> None:
        nonlocal seen
        seen += 1
        if step in (seen, label):
            os.kill(os.getpid(), signal.SIGKILL)

    return failpoint


def publish_and_die(root: Path, step: int | str) -> None:
    publish(EngineStore(root, failpoint=die_at(step)))


def start_writer(root: Path, step: int | str) -> ForkServerProcess:
    """A process that publishes k1 and dies by SIGKILL at its step-th durable step, or at the one with the label `step`,
    or ends in peace before it."""
    process = PROCESSES.Process(target=publish_and_die, args=(root, step))
    process.start()
    return process


def publish_rounds(root: Path, worker: int, rounds: int, same: bool, results: Queue) -> None:
    """Publishes one key a round, the same as or another than the other workers', and tells key and version."""
    store = EngineStore(root)
    for turn in range(rounds):
        key = f"r{turn}" if same else f"r{turn}-w{worker}"
        results.put((key, publish(store, key=key, size=1 << 16).manifest.version))
