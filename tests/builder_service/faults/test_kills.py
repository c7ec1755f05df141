"""kill -9 and SIGTERM of real builders and their children, at every point of a build."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine_store import EngineStore
from tests.builder_service.faults.fleet import Builder, Campaign, end, variant
from tests.builder_service.faults.halts import How


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


ACTS: dict[str, Callable[[Builder, int], None]] = {
    "child": kill_child,
    "daemon": kill_daemon,
    "both": kill_both,
    "sigterm": end_daemon,
}


class Sweep:
    """One build for each point; somebody is killed when it is there."""

    def __init__(self, builder: Builder) -> None:
        self.builder, self.campaign = builder, Campaign(builder)
        self.store = EngineStore(builder.store)
        self.kills: Counter[str] = Counter()

    def round(self, who: str, point: str, *, how: How = "asleep", force: bool = False) -> None:
        """A child that was killed fails its build unless it had decided; whatever else is killed, the build succeeds.
        One version in the store, if any."""
        number = len(self.campaign.submissions)
        engine = f"e{number}"
        self.builder.halts.arm(point, how)
        asking = threading.Thread(target=self._submit, args=(engine, variant(number), force))
        asking.start()
        halted = self.builder.halts.halted()
        ACTS[who](self.builder, halted)
        asking.join()
        operation = self.campaign.wait(self.campaign.submissions[-1].follower.name)
        self.kills[f"{who} at {point.partition(':')[0]}"] += 1
        versions = len(self.store.version_numbers(engine))
        if who == "child":
            assert versions == (not operation.HasField("error")), f"{who} at {point}: {operation}"
        else:
            assert (versions, operation.HasField("error")) == (1, False), f"{who} at {point}: {operation}"

    def points(self, of_child: bool, *, force: bool = False) -> list[str]:
        """The points of a build in a store that has others, in order: those of its child, or of the daemon."""
        for each in range(256):  # so that all builds make the same steps
            (self.builder.store / "blobs" / f"{each:02x}").mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            before, number = len(self.builder.halts.passed()), 900 + len(self.campaign.submissions)
            fields = {"build_config": variant(number), "alias": "prod", "force": force}
            self.campaign.wait(self.campaign.submit(f"plain{number}", **fields).name)
        passed = self.builder.halts.passed()[before:]
        return list(dict.fromkeys(row.point for row in passed if (row.who != "daemon") == of_child))

    def _submit(self, *asked: object) -> None:
        engine, config, force = asked
        self.campaign.submit(engine, build_config=config, alias="prod", force=force)


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    with Builder(tmp_path).running() as running:
        yield running


SHORT = [
    ("child", "stage:converting"),
    ("child", "store:publish.rename"),
    ("daemon", "key"),
    ("both", "store:publish.rename"),
    ("sigterm", "stage:verifying"),
    ("daemon", "jobs:record:Finished-succeeded:before"),
]


def test_whoever_is_killed_every_build_ends_and_is_whole(builder: Builder) -> None:
    sweep = Sweep(builder)
    for who, point in SHORT:
        sweep.round(who, point)
    sweep.campaign.check()


def test_a_forced_version_counts_though_its_builder_froze_before_it_noted_the_key(builder: Builder) -> None:
    """The next attempt of a forced build would publish another version."""
    campaign = Campaign(builder)
    builder.halts.arm("jobs:set_build_key:before", "stopped")
    follower = campaign.submit("tiny", force=True)
    builder.halts.halted()
    while not campaign.store().version_numbers("tiny"):
        time.sleep(0.02)
    builder.kill()
    builder.start()
    campaign.wait(follower.name)
    campaign.check()
    assert campaign.store().version_numbers("tiny") == [1]


@pytest.mark.long
@pytest.mark.parametrize("who", ACTS)
def test_at_every_point_of_a_build(builder: Builder, who: str) -> None:
    """The child halts at each stage and step of its publication, at a quarter of those before the decision where the
    daemon is killed. Then one of them is killed, or both are."""
    sweep = Sweep(builder)
    points = [point for point in sweep.points(of_child=True) if point != "said"]  # it may be gone before it is there
    forced = sweep.points(of_child=True, force=True)
    decides = points.index("store:publish.decide.link")
    for number, point in enumerate(points):
        if who == "child" or number % 4 == len(who) % 4 or number >= decides or not point.startswith("store:"):
            how: How = "deaf" if who == "sigterm" and number % 4 == 0 else "asleep"
            sweep.round(who, point, how=how, force=bool(number % 2) and point in forced)
    sweep.campaign.check()
    print(f"\n{sweep.kills.total()} of {len(points)} points, kills: {dict(sweep.kills)}")


@pytest.mark.long
def test_at_every_change_of_the_queue(builder: Builder) -> None:
    """The daemon is killed before and after each transaction, and at each step of its own in the store."""
    sweep = Sweep(builder)
    points = sweep.points(of_child=False)
    for number, point in enumerate(points):
        sweep.round("daemon", point, how="stopped", force=bool(number // 2 % 2))
    sweep.campaign.check()
    print(f"\nthe daemon was killed at {len(points)} points: {', '.join(points)}")


@pytest.mark.long
@pytest.mark.parametrize("left", ["store:publish.rename", "stage:converting"])
def test_while_it_recovers(builder: Builder, left: str) -> None:
    """A daemon dies with a build, decided or not, and the next one at each step of taking it up again."""
    sweep = Sweep(builder)

    def leave(engine: str, number: int) -> str:
        builder.halts.arm(left)
        operation = sweep.campaign.submit(engine, build_config=variant(number)).name
        builder.halts.halted()
        builder.kill()
        return operation

    leave("first", 800)
    before = len(builder.halts.passed())
    builder.start()
    sweep.campaign.check()
    rows = [row.point for row in builder.halts.passed()[before:] if row.who == "daemon"]
    points = list(dict.fromkeys(rows[: rows.index("jobs:submit:before")]))
    for number, point in enumerate(points):
        operation = leave(f"r{number}", number)
        builder.halts.arm(point, "stopped")
        builder.launch()
        builder.halts.halted()
        builder.kill()
        builder.start()
        sweep.campaign.wait(operation)
    sweep.campaign.check()
    assert all(len(sweep.store.version_numbers(engine)) == 1 for engine in sweep.store.list_engines())
    print(f"\nthe daemon was killed at {len(points)} points of its recovery: {', '.join(points)}")
