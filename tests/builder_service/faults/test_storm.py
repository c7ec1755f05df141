"""Builders and children killed at random moments under load, again and again."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse.errors import from_status
from tests.builder_service.faults.fleet import Builder, Campaign, children, end, variant

KEYS = 15


class Load:
    """Asks for builds until it is ended, and cancels one now and then. Every third build is followed."""

    def __init__(self, campaign: Campaign, seed: int, most: int) -> None:
        self._campaign, self._chance, self._most = campaign, random.Random(seed), most
        self.asked: list[tuple[pb.BuildEngineRequest, str]] = []
        self._ended = threading.Event()
        self._broken: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert not self._broken, self._broken

    def _run(self) -> None:
        try:
            self._ask()
        except BaseException as error:
            self._broken.append(error)

    def _ask(self) -> None:
        while len(self.asked) < self._most and not self._ended.wait(self._chance.random() * 0.8):
            key = self._chance.randrange(KEYS)
            fields = {"build_config": variant(key), "alias": f"alias{key}", "priority": self._chance.random()}
            if len(self.asked) % 3 == 0:
                name = self._campaign.submit(f"e{key % 5}", **fields).name
                request = self._campaign.submissions[-1].request
            else:
                request = self._campaign.request(f"e{key % 5}", **fields)
                name = self._campaign.ask(request).name
            self.asked.append((request, name))
            if self._chance.random() < 0.1:
                self._campaign.cancel(self._chance.choice(self.asked)[1])


def strike(builder: Builder, chance: random.Random) -> str:
    """Kills somebody; whom."""
    assert builder.process is not None
    whom = chance.choices(["daemon", "both", "child", "sigterm"], [5, 2, 2, 1])[0]
    if whom in ("both", "child"):
        for child in children(builder.process.pid):
            end(child)
    if whom != "child":
        builder.kill(signal.SIGTERM if whom == "sigterm" else signal.SIGKILL)
        builder.start()
    return whom


def storm(builder: Builder, rounds: int, seed: int) -> str:
    """Everything that was acknowledged is there and ends; each key is one version. What to quote."""
    chance, campaign = random.Random(seed), Campaign(builder)
    load, strikes = Load(campaign, seed, most=2 * rounds), Counter[str]()
    for _ in range(rounds):
        time.sleep(chance.random())
        strikes[strike(builder, chance)] += 1
    load.end()
    ends = Counter[str]()
    for request, name in load.asked:
        operation = campaign.wait(name)
        ends[from_status(operation.error).reason if operation.HasField("error") else "SUCCEEDED"] += 1
        assert campaign.ask(request).name == name
    campaign.check()
    assert set(ends) <= {"SUCCEEDED", "BUILD_CANCELLED", "BUILD_CRASHED", "BUILD_LOST"}, ends
    for engine in campaign.store().list_engines():
        keys = [manifest.build_key for manifest in campaign.store().list_versions(engine)]
        assert len(keys) == len(set(keys)), f"{engine} has a key twice"
    return f"{rounds} rounds, killed {dict(strikes)}; {len(load.asked)} builds acknowledged, ended {dict(ends)}"


@pytest.mark.long
def test_nothing_acknowledged_is_lost_in_50_rounds(tmp_path: Path) -> None:
    with Builder(tmp_path, places=2).running() as builder:
        print("\n" + storm(builder, rounds=50, seed=3))
