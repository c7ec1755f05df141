"""Cancelling at each stage, and children that stop."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from builder_service.job import Stage
from tests.builder_service.faults.fleet import Builder, Campaign, end, variant
from tests.builder_service.faults.halts import How

CANCEL_SECONDS = 2.0
STAGES = [f"stage:{stage}" for stage in ("fetching", "converting", "capturing", "compiling", "verifying", "publishing")]
EVERYWHERE = ["start", "job", *STAGES, "store:publish.decide.link", "store:publish.rename", "result"]


def cancelled_at(campaign: Campaign, point: str, how: How) -> float:
    """Cancels a build whose child has halted; the seconds until it was done. It is cancelled, unless its version is
    decided; either way its child is gone and nothing is staged."""
    number = len(campaign.submissions)
    campaign.builder.halts.arm(point, how)
    follower = campaign.submit(f"e{number}", build_config=variant(number))
    halted = campaign.builder.halts.halted()
    began = time.monotonic()
    campaign.cancel(follower.name)
    campaign.wait(follower.name)
    seconds = time.monotonic() - began
    published = bool(campaign.store().version_numbers(f"e{number}"))
    assert follower.done().finished.stage == (Stage.SUCCEEDED if published else Stage.CANCELLED)
    assert not Path(f"/proc/{halted}").exists()
    assert campaign.builder.staged() == []
    return seconds


def sweep(campaign: Campaign, points: list[str], hows: list[How]) -> str:
    took = {}
    for number, point in enumerate(points):
        how = hows[number % len(hows)]
        took[f"{point} {how}"] = cancelled_at(campaign, point, how)
    campaign.check()
    assert max(took.values()) < CANCEL_SECONDS, took
    each = ", ".join(f"{name} {seconds:.2f}" for name, seconds in took.items())
    return f"{len(took)} cancels, the slowest {max(took.values()):.2f} s: {each}"


def test_a_cancelled_build_ends_in_two_seconds_and_leaves_nothing(tmp_path: Path) -> None:
    points = ["stage:converting", "stage:publishing", "store:publish.rename"]
    with Builder(tmp_path).running() as builder:
        print("\n" + sweep(Campaign(builder), points, ["asleep", "deaf"]))


@pytest.mark.long
@pytest.mark.parametrize("how", ["asleep", "deaf", "stopped"])
def test_it_ends_at_every_point(tmp_path: Path, how: How) -> None:
    with Builder(tmp_path).running() as builder:
        print("\n" + sweep(Campaign(builder), EVERYWHERE, [how]))


@pytest.mark.long
def test_the_real_child_ends_at_each_stage(tmp_path: Path, make_checkpoint: Callable[..., Path]) -> None:
    with real(tmp_path, make_checkpoint).running() as builder:
        print("\nthe real child: " + sweep(Campaign(builder), [*STAGES, "store:publish.rename"], ["asleep", "deaf"]))


@pytest.mark.long
def test_the_real_child_and_its_daemon_are_killed_at_each_stage(
    tmp_path: Path, make_checkpoint: Callable[..., Path]
) -> None:
    """The daemon first; then, at the same stage of the next attempt, the child."""
    points = [*STAGES, "store:publish.rename"]
    with real(tmp_path, make_checkpoint).running() as builder:
        campaign = Campaign(builder)
        for number, point in enumerate(points):
            builder.halts.arm(point)
            follower = campaign.submit(f"e{number}", build_config=variant(number))
            builder.halts.halted()
            builder.kill()
            if point in STAGES:
                builder.halts.arm(point)
            builder.start()
            if point in STAGES:
                end(builder.halts.halted())
            assert campaign.wait(follower.name).HasField("error") == (point in STAGES), point
        campaign.check()
        print(f"\nthe real child: its daemon was killed at {len(points)} points, and it at {len(STAGES)}")


def test_a_stopped_child_holds_its_build_up_and_no_more(tmp_path: Path) -> None:
    """It goes on with SIGCONT; a builder that ends does not wait for it, and the next one builds again."""
    with Builder(tmp_path).running() as builder:
        campaign = Campaign(builder)
        for act in ("continue", "end"):
            builder.halts.arm("stage:capturing", "stopped")
            follower = campaign.submit(act)
            halted = builder.halts.halted()
            if act == "continue":
                builder.halts.go_on(halted)
            else:
                assert builder.kill(signal.SIGTERM) == 0
                builder.start()
            assert not campaign.wait(follower.name).HasField("error")
        campaign.check()


def real(root: Path, make_checkpoint: Callable[..., Path]) -> Builder:
    """With the real child, and a tiny random checkpoint."""
    builder = Builder(root, child="real")
    shutil.copytree(make_checkpoint(), builder.models / "tiny", dirs_exist_ok=True)
    return builder
