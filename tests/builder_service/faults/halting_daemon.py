"""The builder daemon as a program that halts where the test says: around each change of its queue, and at each step of
its own in the store.

python halting_daemon.py <settings as JSON: see `fleet.Builder`>
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from builder_service import daemon
from builder_service.queue import jobs, turns
from builder_service.queue.events import Finished, Started
from builder_service.queue.jobs import JobStore
from builder_service.queue.process import ChildSettings
from engine_store import EngineStore
from service_kit import logs
from service_kit.server import ServerSettings
from tests.builder_service.faults.halts import Halts

HALTS = Halts.of_environment()
HALTS.who, HALTS.store = "daemon", "own"
STEPS = ("submit", "record", "set_build_key", "set_child", "requeue", "lose")


def halt_around(name: str) -> None:
    """Makes a method of JobStore pass a point before and after it."""
    method: Callable[..., Any] = getattr(JobStore, name)

    def wrapped(self: JobStore, *args: Any, **named: Any) -> Any:
        point = ":".join(("jobs", name, *_kind(args)))
        HALTS.reached(f"{point}:before")
        result = method(self, *args, **named)
        HALTS.reached(f"{point}:after")
        return result

    setattr(JobStore, name, wrapped)


def _kind(args: tuple[Any, ...]) -> list[str]:
    return [
        f"{type(each).__name__}-{each.stage}" if isinstance(each, Started | Finished) else type(each).__name__
        for each in args
        if hasattr(each, "__struct_fields__") and type(each).__module__ == "builder_service.queue.events"
    ]


def main() -> None:
    chosen = json.loads(sys.argv[1])
    for name in STEPS:
        halt_around(name)
    if chosen["patience"]:
        jobs.PATIENCE_SECONDS = turns.PATIENCE_SECONDS = chosen["patience"]
    daemon.EngineStore = lambda root, **named: EngineStore(root, failpoint=HALTS.store_step, **named)
    logs.setup()
    daemon.main(
        daemon.BuilderSettings(
            store=Path(chosen["store"]),
            state=Path(chosen["state"]),
            roots=tuple(map(Path, chosen["roots"])),
            server=ServerSettings(port=chosen["port"], grace_seconds=5),
            child=ChildSettings(command=tuple(chosen["command"])),
            max_concurrent_builds=chosen["places"],
            max_queued_builds=chosen["queued"],
            offline=True,
        )
    )


if __name__ == "__main__":
    main()
