"""Two builders with a queue each, and one store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.builder_service.faults.fleet import Builder, Campaign, end, metadata, variant, version


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Campaign, Campaign]]:
    root = tmp_path_factory.mktemp("pair")
    store = root / "store"
    with Builder(root / "a", store=store).running() as one, Builder(root / "b", store=store).running() as two:
        yield Campaign(one), Campaign(two)


def ask(campaign: Campaign, number: int) -> str:
    """Asks for a build; its operation."""
    return campaign.submit(f"e{number}", build_config=variant(number), alias="prod").name


def test_the_same_key_at_once_is_one_version(pair: tuple[Campaign, Campaign]) -> None:
    """Both children stop at the same point and go on together."""
    for number, point in enumerate(["stage:publishing", "store:publish.decide.link", "store:publish.decide.link"]):
        for campaign in pair:
            campaign.builder.halts.arm(point, "stopped")
        names = [ask(campaign, number) for campaign in pair]
        halted = [campaign.builder.halts.halted() for campaign in pair]
        for campaign, child in zip(pair, halted, strict=True):
            campaign.builder.halts.go_on(child)
        done = [campaign.wait(name) for campaign, name in zip(pair, names, strict=True)]
        assert len(set(map(version, done))) == 1
        assert sorted(metadata(each).reused for each in done) == [False, True]
        assert len(pair[0].store().version_numbers(f"e{number}")) == 1
    for campaign in pair:
        campaign.check()


def test_the_other_builder_takes_over_what_a_dead_one_had_decided(pair: tuple[Campaign, Campaign]) -> None:
    """One is killed with its child between the decision and the rename. Both builds end with its version."""
    dying, other = pair
    dying.builder.halts.arm("store:publish.rename")
    mine = ask(dying, 10)
    halted = dying.builder.halts.halted()
    first = other.wait(ask(other, 10))
    end(halted)
    dying.builder.kill()
    dying.builder.start()
    assert version(dying.wait(mine)) == version(first)
    assert len(other.store().version_numbers("e10")) == 1
    for campaign in pair:
        campaign.check()
