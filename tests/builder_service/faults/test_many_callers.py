"""200 calls at once for 20 keys, and the order in which builds start."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from enginehouse._gen.enginehouse.builder.v1 import build_config_pb2 as config_pb
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from tests.builder_service.faults.fleet import Builder, Campaign, end, metadata, variant, version

KEYS, CLIENTS, SPELLED_OUT = 20, 10, 4


class Answer(NamedTuple):
    """What one caller got."""

    key: int
    version: str
    reused: bool


def fields_of(key: int, client: int) -> dict[str, object]:
    """Requests for one build key: identical ones, ones with other labels or another alias, and, for some keys, one
    that names the dtype that is the default: its child finds out that it has this key."""
    if client in (4, 5, 6):
        return {"labels": {"client": str(client)}}
    if client in (7, 8):
        return {"alias": f"client{client}"}
    if client == 9 and key < SPELLED_OUT:
        return {"build_config": config_pb.BuildConfig(max_batch_size=key + 1, dtype=common_pb2.DATA_TYPE_FLOAT32)}
    return {}


def call_all(builder: Builder) -> tuple[list[Answer], Campaign]:
    """All calls at once, over 20 connections; each waits for its build."""
    campaigns = [Campaign(builder) for _ in range(20)]
    gate = threading.Barrier(KEYS * CLIENTS)

    def call(number: int) -> Answer:
        key, client = number % KEYS, number // KEYS
        campaign = campaigns[number % len(campaigns)]
        request = campaign.request("shared", **{"build_config": variant(key), **fields_of(key, client)})
        gate.wait()
        done = campaign.wait(campaign.ask(request).name, 900)
        return Answer(key, version(done), metadata(done).reused)

    with ThreadPoolExecutor(KEYS * CLIENTS) as pool:
        return list(pool.map(call, range(KEYS * CLIENTS))), campaigns[0]


def check(builder: Builder) -> str:
    """20 builds, the other 180 get their versions. What to quote."""
    began = time.monotonic()
    answers, campaign = call_all(builder)
    seconds = time.monotonic() - began
    versions = defaultdict(set)
    for answer in answers:
        versions[answer.key].add(answer.version)
    assert [len(found) for found in versions.values()] == [1] * KEYS
    assert len(set.union(*versions.values())) == KEYS
    fresh = [answer.key for answer in answers if not answer.reused]
    assert sorted(fresh) == list(range(KEYS))
    passed = builder.halts.passed()
    children = Counter(row.point for row in passed)
    # one that finds its key in a build that runs is ended, and may have come a bit further until then
    assert KEYS <= children["stage:converting"] <= KEYS + SPELLED_OUT
    assert campaign.store().version_numbers("shared") == list(range(KEYS, 0, -1))
    for number in (7, 8):
        assert campaign.store().get_alias("shared", f"client{number}")
    campaign.check()
    return f"{len(answers)} calls, {KEYS} keys: {KEYS} versions, {children['start']} children, {seconds:.1f} s"


def test_200_callers_of_20_keys_make_20_builds(tmp_path: Path) -> None:
    with Builder(tmp_path, places=2).running() as builder:
        print(check(builder))


@pytest.mark.long
def test_200_callers_of_20_keys_make_20_real_builds(tmp_path: Path, make_checkpoint: Callable[..., Path]) -> None:
    builder = Builder(tmp_path, child="real", places=2)
    shutil.copytree(make_checkpoint(), builder.models / "tiny", dirs_exist_ok=True)
    with builder.running():
        print("\n" + check(builder))


def test_builds_start_by_priority_then_in_the_order_they_came(tmp_path: Path) -> None:
    """One place, taken by a build that halts until all others wait. What is promised of priorities: nobody who comes
    later than the patience times the difference in priority is taken before."""
    patience = 4.0
    with Builder(tmp_path, patience=patience, queued=200).running() as builder:
        campaign = Campaign(builder)
        builder.halts.arm("job")
        campaign.submit("first")
        halted = builder.halts.halted()
        began = time.monotonic()

        def ask(engine: str, priority: float) -> str:
            return campaign.ask(campaign.request(engine, priority=priority)).name

        old = ask("old", 0.0)
        equal = [ask(f"equal{number}", 0.5) for number in range(3)]
        soon = [ask(f"soon{number}", 1.0) for number in range(50)]
        assert time.monotonic() - began < patience / 2, "too slow to show anything"
        time.sleep(patience + 0.1 - (time.monotonic() - began))
        late = [ask(f"late{number}", 1.0) for number in range(50)]
        places = {name: campaign.status(name).queue_position for name in (old, *equal, *soon, *late)}
        assert sorted(places, key=places.__getitem__) == [*soon, *equal, old, *late]
        for name in (*soon[1:], *late[1:]):
            campaign.cancel(name)
        end(halted)
        campaign.wait(late[0])
        campaign.check()
        order = [row.who for row in builder.halts.passed() if row.point == "job"]
        assert order == ["first", "soon0", "equal0", "equal1", "equal2", "old", "late0"]
