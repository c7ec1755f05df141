"""kill -9 and SIGTERM of real builders and their children, at every point of a build."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from builder_service.job import Stage
from engine_store import EngineStore
from tests.builder_service.faults.fleet import Builder, Campaign, end, variant


def kill_child(builder: Builder, halted: int) -> None:
    end(halted)


def kill_daemon(builder: Builder, halted: int) -> None:
    builder.kill()
    builder.start()


def kill_both(builder: Builder, halted: int) -> None:
    end(halted)
    kill_daemon(builder, halted)


def end_daemon(builder: Builder, halted: int) -> None:
    assert builder.kill(signal.SIGTERM) == 0
    builder.start()


ACTS = {"child": kill_child, "daemon": kill_daemon, "both": kill_both, "sigterm": end_daemon}
Act = Callable[[Builder, int], None]


class Sweep:
    """One build for each point; it is killed there."""

    def __init__(self, builder: Builder) -> None:
        self.builder, self.campaign = builder, Campaign(builder)
        self.store = EngineStore(builder.store)
        self.kills: Counter[str] = Counter()

    def round(self, who: str, point: str, *, force: bool = False) -> None:
        number = len(self.campaign.submissions)
        engine = f"e{number}"
        self.builder.halts.arm(point)
        follower = self.campaign.submit(engine, build_config=variant(number), force=force)
        halted = self.builder.halts.halted()
        ACTS[who](self.builder, halted)
        operation = self.campaign.wait(follower.name)
        self.kills[who] += 1
        versions = len(self.store.version_numbers(engine))
        if who == "child":
            assert versions == (not operation.HasField("error")), f"{who} at {point}: {operation}"
        else:
            assert (versions, operation.HasField("error")) == (1, False), f"{who} at {point}: {operation}"

    def points_of_a_build(self) -> list[str]:
        """All points of a build's child in a store that has others."""
        for number in (900, 901):
            self.campaign.wait(self.campaign.submit(f"plain{number}", build_config=variant(number)).name)
        passed = [row for row in self.builder.halts.passed() if row.who == "plain901"]
        return ["start", *(row.point for row in passed if row.point != "said")]


@pytest.fixture
def builder(tmp_path: Path):
    with Builder(tmp_path).running() as running:
        yield running


SHORT = [
    ("child", "start"),
    ("child", "stage:converting"),
    ("daemon", "key"),
    ("daemon", "rename"),
    ("both", "stage:verifying"),
    ("both", "rename"),
    ("sigterm", "stage:publishing"),
    ("daemon", "jobs:record:Finished-succeeded:before"),
    ("daemon", "jobs:record:Finished-succeeded:after"),
]


def test_whoever_is_killed_every_build_ends_and_is_whole(builder: Builder) -> None:
    sweep = Sweep(builder)
    for who, point in SHORT:
        sweep.round(who, point)
    sweep.campaign.check()
