"""Factories of the store's tests. Importable by spawned processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from engine_store import EngineStore, Manifest, Published
from engine_store.manifest import SCHEMA, Limits, Source, Target

BIG = 3 << 20


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


def die_at(step: int):
    """A failpoint that kills the process with SIGKILL at its step-th label."""
    seen = 0

    def failpoint(label: str) -> None:
        nonlocal seen
        seen += 1
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return failpoint
