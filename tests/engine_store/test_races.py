"""Versions that go between two looks, directories that are not the store's, records that cannot be read."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_store import EngineStore, VersionRef
from engine_store.owner import owner_alive, token_of
from enginehouse.errors import NotFound
from tests.engine_store.writing import publish


def _once(label: str, act: Callable[[], object]) -> Callable[[str], None]:
    """A failpoint that does something the first time that it is passed."""
    left = [act]

    def failpoint(step: str) -> None:
        if step == label and left:
            left.pop()()

    return failpoint


@pytest.fixture
def three(tmp_path: Path) -> EngineStore:
    """A store with versions 1 to 3 of an engine."""
    store = EngineStore(tmp_path / "store")
    for key in "abc":
        publish(store, key=key, size=1 << 10)
    return store


def test_an_alias_that_could_not_be_moved_names_what_it_named_before(three: EngineStore) -> None:
    three.set_alias("tiny", "prod", 1)
    mover = EngineStore(three.root, failpoint=_once("alias.link", lambda: three.delete_version("tiny", 2)))
    with pytest.raises(NotFound):
        mover.set_alias("tiny", "prod", 2)
    assert three.get_alias("tiny", "prod").version == 1


def test_an_alias_whose_former_version_went_too_names_nothing(three: EngineStore) -> None:
    def delete_both() -> None:
        three.delete_version("tiny", 2)
        three.delete_alias("tiny", "prod")
        three.delete_version("tiny", 1)
        three.set_alias("tiny", "prod", 3)

    three.set_alias("tiny", "prod", 1)
    mover = EngineStore(three.root, failpoint=_once("alias.draft.write", delete_both))
    with pytest.raises(NotFound):
        mover.set_alias("tiny", "prod", 2)
    assert three.get_alias("tiny", "prod").version == 3, "the latest change before the one that was taken back"


def test_an_alias_that_somebody_moved_on_is_not_put_back(three: EngineStore) -> None:
    def delete_and_move() -> None:
        three.set_alias("tiny", "prod", 3)
        three.delete_version("tiny", 2)

    three.set_alias("tiny", "prod", 1)
    mover = EngineStore(three.root, failpoint=_once("alias.draft.remove", delete_and_move))
    with pytest.raises(NotFound):
        mover.set_alias("tiny", "prod", 2)
    assert three.get_alias("tiny", "prod").version == 3


@pytest.mark.parametrize("while_deciding", [False, True])
def test_a_version_that_goes_while_it_is_to_be_reused_is_published_anew(
    three: EngineStore, while_deciding: bool
) -> None:
    delete = _once("publish.reuse.sync", lambda: three.delete_version("tiny", 4))
    if while_deciding:  # a rival publishes after the first look, and its version goes before the second has read it
        rival = _once("publish.claim.mkdir", lambda: publish(three, key="d", size=1 << 10))
    else:
        publish(three, key="d", size=1 << 10)
        rival = _once("", lambda: None)

    def failpoint(step: str) -> None:
        rival(step)
        delete(step)

    writer = EngineStore(three.root, failpoint=failpoint)
    published = publish(writer, key="d", size=1 << 10)
    assert (published.reused, published.manifest.version) == (False, 5)
    assert three.version_numbers("tiny") == [5, 3, 2, 1]


def test_what_else_lies_at_the_stores_root_is_not_looked_at(three: EngineStore) -> None:
    before = three.usage().used_bytes
    foreign = three.root / "lost+found"
    foreign.mkdir()
    (foreign / "file").write_bytes(bytes(1 << 20))
    foreign.chmod(0)  # nobody but root may look into a real one
    try:
        assert three.usage().used_bytes == before
        three.collect()
    finally:
        foreign.chmod(0o755)


def test_a_damaged_alias_record_keeps_its_engine_and_stops_no_clearing(three: EngineStore) -> None:
    publish(three, "other", size=1 << 10)
    three.set_alias("other", "prod", 1)
    record = three.root / "engines" / "other" / "aliases" / "prod" / "1"
    record.unlink()
    record.touch()
    small = EngineStore(three.root, quota_bytes=1)
    assert small.collect().evicted == tuple(VersionRef("tiny", number) for number in (1, 2, 3))
    assert three.version_numbers("other") == [1]


def test_a_process_that_was_gone_before_its_token_was_made_never_lives() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet reaped
    zombie = token_of(process.pid)
    assert owner_alive(zombie) is False
    process.wait()
    assert owner_alive(zombie) is False
    assert owner_alive(token_of(process.pid)) is False
