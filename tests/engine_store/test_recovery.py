"""After a recovery nothing of a dead writer is left, and no number is ever given twice."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from engine_store import EngineStore, VersionRef
from engine_store.claims import Claims
from engine_store.disk import Disk
from engine_store.layout import Layout
from engine_store.leases import LEASE_SECONDS
from engine_store.owner import new_token
from engine_store.recovery import FOREIGN_SECONDS
from engine_store.steps import STEPS
from enginehouse.errors import DataLoss
from tests.engine_store.writing import PROCESSES, dead_token, die_at, publish, start_writer

SMALL = 1 << 12


def _foreign_token() -> str:
    _, namespace, pid, start, rest = new_token().split(".")
    return f"{'0' * 32}.{namespace}.{pid}.{start}.{rest}"


def _claims(root: Path) -> set[int]:
    return {int(entry.name) for entry in (root / "engines" / "tiny" / "claims").glob("*")}


def _claim(root: Path, number: int, owner: str | None) -> None:
    claim = root / "engines" / "tiny" / "claims" / str(number)
    claim.mkdir(parents=True)
    if owner is not None:
        (claim / "owner").write_text(owner)


# The steps of a first publish; the others of the table need a blob or a rival.
FIRST = [label for label in STEPS["publish"] if not label.startswith(("publish.blob.take", "publish.blob.heal"))]
FIRST = [label for label in FIRST if label not in ("publish.blob.draft.remove", "publish.reuse.sync")]


@pytest.mark.parametrize("part", range(4))
def test_a_kill_at_any_label_leaves_no_staging_and_no_claim_after_recovery(tmp_path: Path, part: int) -> None:
    for label in FIRST[part::4]:
        root = tmp_path / label
        writer = start_writer(root, label)
        writer.join(60)
        assert writer.exitcode == -9, label
        store = EngineStore(root)
        for number in store.version_numbers("tiny"):
            store.verify("tiny", number)
        store.recover()
        assert list((root / "staging").iterdir()) == [], label
        assert _claims(root) == set(store.version_numbers("tiny")), label
        published = publish(store)
        store.verify("tiny", published.manifest.version)
        assert len(store.version_numbers("tiny")) == 1, label
        assert store.recover() == (0, 0, 0)


def test_a_publish_that_gives_up_leaves_no_claim(store: EngineStore) -> None:
    def rival(label: str) -> None:
        if label == "publish.manifest.write":
            publish(store, size=SMALL)

    assert publish(EngineStore(store.root, failpoint=rival), size=SMALL).reused
    assert _claims(store.root) == set(store.version_numbers("tiny"))
    assert list((store.root / "staging").iterdir()) == []


def test_the_number_of_a_dead_claim_is_spent_and_an_empty_claim_is_nobodys(store: EngineStore) -> None:
    publish(store, size=SMALL)
    _claim(store.root, 2, dead_token())
    _claim(store.root, 3, None)
    assert store.recover() == (0, 0, 2)
    assert _claims(store.root) == {1}
    assert publish(store, size=SMALL, force=True).manifest.version == 3
    assert store.version_numbers("tiny") == [3, 1]
    assert store.deleted_numbers("tiny") == []


def test_claims_of_the_living_and_of_other_machines_stay_until_they_are_old(tmp_path: Path) -> None:
    root = tmp_path / "store"
    publish(EngineStore(root), size=SMALL)
    _claim(root, 2, new_token())
    _claim(root, 3, _foreign_token())
    assert EngineStore(root).recover() == (0, 0, 0)
    later = EngineStore(root, clock=lambda: time.time() + FOREIGN_SECONDS + 1)
    assert later.recover() == (0, 0, 1)
    assert _claims(root) == {1, 2}


def test_a_claim_that_a_record_names_stays(store: EngineStore) -> None:
    """Its version was decided: it comes once the staging of its dead writer is found."""
    writer = start_writer(store.root, "publish.rename")
    writer.join(60)
    entry = next((store.root / "staging").iterdir())
    away = store.root / "away"
    entry.rename(away)
    assert store.recover().claims == 0
    away.rename(entry)
    assert store.recover() == (1, 0, 0)
    assert store.version_numbers("tiny") == [1]


def test_a_writer_whose_number_is_spent_meanwhile_takes_the_next(store: EngineStore) -> None:
    """It computed its number before another writer claimed it, died, and was cleared."""
    publish(store, size=SMALL)

    def spend(label: str) -> None:
        if label == "publish.claim.mkdir" and not (store.root / "engines" / "tiny" / "tombstones").exists():
            _claim(store.root, 2, dead_token())
            store.recover()

    late = EngineStore(store.root, failpoint=spend)
    assert publish(late, size=SMALL, force=True).manifest.version == 3
    assert store.version_numbers("tiny") == [3, 1]
    assert _claims(store.root) == {1, 3}


def test_a_claim_cleared_before_it_had_an_owner_is_lost(store: EngineStore) -> None:
    cleared: list[int] = []

    def clear(label: str) -> None:
        if label == "publish.claim.owner" and not cleared:
            cleared.append(store.recover().claims)

    published = publish(EngineStore(store.root, failpoint=clear), size=SMALL)
    assert cleared == [1]
    assert published.manifest.version == 2
    assert _claims(store.root) == {2}


def test_numbers_are_unique_while_writers_die_and_claims_are_cleared(tmp_path: Path) -> None:
    """Threads claim, some claims' owners die, others clear: no number is given twice."""
    layout = Layout(tmp_path / "store")
    (layout.root / "staging").mkdir(parents=True)
    taken: list[int] = []
    done = threading.Event()

    def take() -> None:
        for turn in range(12):
            claims = Claims(layout, Disk(layout.root))
            number = claims.take("tiny")
            taken.append(number)
            owner = layout.claim("tiny", number) / "owner"
            if turn % 3 == 0:
                owner.chmod(0o644)
                owner.write_text(dead_token())

    def clear() -> None:
        while not done.is_set():
            EngineStore(layout.root).recover()

    threads = [threading.Thread(target=take) for _ in range(4)]
    clearers = [threading.Thread(target=clear) for _ in range(2)]
    for thread in threads + clearers:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    for thread in clearers:
        thread.join()
    assert len(taken) == len(set(taken)) == 48


def test_recovery_removes_drafts_expired_leases_and_last_uses_of_nothing(store: EngineStore) -> None:
    publish(store, size=SMALL)
    (store.root / "staging" / dead_token()).write_text("a record's draft")
    leases = store.root / "leases"
    store.lease("tiny", 1)
    (leases / f"tiny.1.{dead_token()}").touch()
    expired = leases / f"tiny.1.{new_token()}"
    expired.touch()
    os.utime(expired, (time.time() - LEASE_SECONDS,) * 2)
    (leases / "tiny.7.used").touch()
    assert store.recover() == (0, 1, 0)
    assert len(list(leases.iterdir())) == 2, "the living lease and its version's last use"


def test_a_damaged_record_stops_no_recovery(store: EngineStore) -> None:
    publish(store, size=SMALL)
    record = next((store.root / "engines" / "tiny" / "keys").glob("*/1"))
    record.chmod(0o644)
    record.write_text("{")
    writer = PROCESSES.Process(target=_publish_other, args=(store.root, "publish.rename"))
    writer.start()
    writer.join(60)
    _claim(store.root, 9, dead_token())
    assert store.recover().completed == 1
    with pytest.raises(DataLoss):
        store.find("tiny", "k1")


def _publish_other(root: Path, label: str) -> None:
    publish(EngineStore(root, failpoint=die_at(label)), key="other", size=SMALL)


def test_a_version_with_two_names_after_a_power_cut_loses_the_staged_one(store: EngineStore) -> None:
    writer = start_writer(store.root, "publish.rename")
    writer.join(60)
    entry = next((store.root / "staging").iterdir())
    os.system(f"cp -a {entry} {store.root}/copy")
    assert store.recover() == (1, 0, 0)
    (store.root / "copy").rename(entry)
    assert store.recover() == (1, 0, 0)
    assert list((store.root / "staging").iterdir()) == []
    store.verify("tiny", 1)


@pytest.mark.parametrize("aliased", [False, True])
def test_what_a_dead_deleter_began_ends_as_if_it_had_looked_again(store: EngineStore, aliased: bool) -> None:
    publish(store, size=SMALL)

    def meanwhile(label: str) -> None:
        if label == "delete.draft.sync" and aliased:
            store.set_alias("tiny", "prod", 1)
        if label == "delete.sync":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EngineStore(store.root, failpoint=meanwhile).delete_version("tiny", 1)
    tombstone = store.root / "engines" / "tiny" / "tombstones" / "1"
    store.recover()
    assert store.version_numbers("tiny") == [], "the deleter lives and may yet look"
    tombstone.write_text(dead_token())
    store.recover()
    assert store.version_numbers("tiny") == ([1] if aliased else [])
    assert tombstone.exists() is not aliased


def test_published_by_tells_what_a_process_published(store: EngineStore) -> None:
    writer = start_writer(store.root, "publish.rename")
    writer.join(60)
    token = next((store.root / "staging").iterdir()).name.rpartition(".")[0] + "." + "0" * 16
    assert store.published_by("tiny", "k1", new_token()) is None
    assert store.published_by("tiny", "other", token) is None
    assert store.version_numbers("tiny") == []
    assert store.published_by("tiny", "k1", token) == 1, "it had decided: the rename is made up for"
    assert store.version_numbers("tiny") == [1]
    mine = publish(store, size=SMALL, force=True)
    assert store.published_by("tiny", "k1", new_token()) == mine.manifest.version
    store.delete_version("tiny", 1)
    assert store.published_by("tiny", "k1", token) is None


def test_a_refused_step_after_the_decision_does_not_undo_it(store: EngineStore) -> None:
    def fail(label: str) -> None:
        if label == "publish.rename":
            raise OSError(5, label)

    with pytest.raises(Exception, match="EIO"):
        publish(EngineStore(store.root, failpoint=fail), size=SMALL)
    assert store.published_by("tiny", "k1", new_token()) == 1
    assert publish(store, size=SMALL).reused
    store.verify("tiny", 1)


def test_references_are_plain_pairs() -> None:
    assert VersionRef("tiny", 1) == ("tiny", 1)


def test_what_a_process_before_the_reboot_left_goes_once_it_is_said_to_be_gone(tmp_path: Path) -> None:
    store, token = EngineStore(tmp_path), _foreign_token()
    (tmp_path / "staging" / token).mkdir(parents=True)
    _claim(tmp_path, 3, token)
    other = token.replace("0" * 32, "1" * 32)
    (tmp_path / "staging" / other).mkdir()
    assert store.recover() == (0, 0, 0)
    assert store.recover(gone=["", token]) == (0, 1, 1)
    assert [entry.name for entry in (tmp_path / "staging").iterdir()] == [other]
    assert publish(store).manifest.version == 4
