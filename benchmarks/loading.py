"""Times how long a server takes to load an engine: digests, tokenizer, weights.

    python benchmarks/loading.py --store DIR --engine ID [--version N] [--cold] [--rounds 5] [--dtype auto]

--cold drops the engine's files from the page cache before each round (posix_fadvise: no root needed). Prints the median
and the spread in wall and CPU seconds, and the load average: on a busy machine they say little.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from engine_store import EngineStore
from inference_service.config import KvCacheConfig, ModelConfig, RunnerConfig
from inference_service.frontend.served_model import LoadSpec
from inference_service.models import ModelManager


class Round(NamedTuple):
    """Seconds."""

    wall: float
    cpu: float


def forget(folder: Path) -> None:
    """Drops the files from the page cache."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


async def load(store: EngineStore, spec: LoadSpec) -> Round:
    manager = ModelManager(store)
    wall, cpu = time.perf_counter(), time.process_time()
    await manager.load(spec)
    took = Round(time.perf_counter() - wall, time.process_time() - cpu)
    await manager.close()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--version", default="latest")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    store = EngineStore(args.store)
    manifest = store.resolve(args.engine, args.version)
    runner = RunnerConfig(device="cpu", dtype=args.dtype, num_threads=args.threads)
    config = ModelConfig(runner=runner, kv_cache=KvCacheConfig(max_tokens=4096))
    spec = LoadSpec(name="benchmark", engine=args.engine, ref=str(manifest.version), config=config)
    rounds = []
    for number in range(args.rounds + 1):
        if args.cold:
            forget(store.version_path(manifest.name, manifest.version))
        took = asyncio.run(load(store, spec))
        if number:  # the first one imports and compiles
            rounds.append(took)
    for name in Round._fields:
        seconds = sorted(getattr(each, name) for each in rounds)
        print(f"{name}: median {statistics.median(seconds):.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f})")
    print(f"{sum(file.size_bytes for file in manifest.files) / 1e6:.0f} MB, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
