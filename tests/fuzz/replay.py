"""Sends saved calls again, to daemons that it starts: `python -m tests.fuzz.replay fault-0.*.json`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import grpc

from .calls import Call, perform
from .daemons import Process, daemons, make_home, wait_serving


async def _replay(paths: list[Path], processes: dict[str, Process]) -> None:
    for path in paths:
        call = Call.load(path)
        async with grpc.aio.insecure_channel(processes[call.daemon].address) as channel:
            ended = await perform(call, channel)
        print(call.method, ended.code.name, ended.reason, f"{ended.seconds:.2f} s", ended.fault or "no fault")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, daemons(make_home(Path(folder) / "home")) as processes:
        for process in processes.values():
            wait_serving(process)
        asyncio.run(_replay([Path(text) for text in sys.argv[1:]], processes))
        for process in processes.values():
            print(f"--- {process.name}\n{process.log.read_text()[-6000:]}")


if __name__ == "__main__":
    main()
