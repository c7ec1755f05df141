from __future__ import annotations

import os
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_store import EngineStore, VersionRef
from engine_store.blobs import MIN_BLOB_BYTES
from engine_store.leases import LEASE_SECONDS
from engine_store.quota import Usage, over_quota
from enginehouse.errors import ResourceExhausted
from tests.engine_store.writing import fill, manifest, publish

SIZE = 1 << 14


class Bench:
    """A store whose clock is told the time; `made` counts its versions, one a second."""

    def __init__(self, root: Path) -> None:
        self.root, self.now, self.made = root, 1.8e9, 0

    def store(self, quota_bytes: int = 0) -> EngineStore:
        return EngineStore(self.root, clock=lambda: self.now, quota_bytes=quota_bytes)

    def add(self, engine: str = "tiny", size: int = SIZE) -> VersionRef:
        """Publishes a version of its own content; a second passes."""
        self.now, self.made = self.now + 1, self.made + 1
        made = msgspec.structs.replace(manifest(engine, f"k{self.made}"), create_time=_text(self.now))
        with self.store().stage() as staging:
            fill(staging.path, made.build_key, size)
            return VersionRef(engine, staging.publish(made).manifest.version)

    def on_disk(self) -> int:
        """What `du` would say, without directories."""
        stats = [path.lstat() for path in self.root.rglob("*") if not path.is_dir()]
        return sum({stat.st_ino: stat.st_size for stat in stats}.values())


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store")


def _evicted(store: EngineStore, needed: int) -> list[VersionRef]:
    return [VersionRef(each.name, each.version) for each in store.make_room(needed)]


def test_usage_counts_a_shared_blob_once_and_staging_too(bench: Bench) -> None:
    store = bench.store()
    assert store.usage() == (0, 0)
    publish(store, size=MIN_BLOB_BYTES)
    one = store.usage().used_bytes
    publish(store, size=MIN_BLOB_BYTES, force=True)
    assert MIN_BLOB_BYTES < one < store.usage().used_bytes < one + MIN_BLOB_BYTES // 2
    with store.stage() as staging:
        (staging.path / "half").write_bytes(b"x" * 1000)
        assert store.usage().used_bytes == bench.on_disk()


def test_without_a_quota_there_is_always_room(bench: Bench) -> None:
    bench.add()
    assert bench.store().make_room(1 << 60) == []


def test_the_least_recently_used_goes_first_and_only_as_many_as_needed(bench: Bench) -> None:
    first, second, third = bench.add(), bench.add("other"), bench.add()
    quota = bench.store().usage().used_bytes
    assert _evicted(bench.store(quota), 0) == []
    bench.now += 1
    bench.store().lease(*first).release()
    assert _evicted(bench.store(quota), SIZE) == [second]
    assert _evicted(bench.store(quota), SIZE) == [], "what is deleted counts as gone already"
    assert _evicted(bench.store(quota), 2 * SIZE) == [third]
    assert bench.store().version_numbers("tiny") == [first.version]


def test_leased_and_aliased_versions_stay_and_a_refusal_deletes_nothing(bench: Bench) -> None:
    leased, aliased, free = bench.add(), bench.add(), bench.add()
    quota = bench.store().usage().used_bytes
    bench.store().lease(*leased)
    bench.store().set_alias(aliased.engine, "prod", aliased.version)
    with pytest.raises(ResourceExhausted) as caught:
        bench.store(quota).make_room(2 * SIZE)
    assert caught.value.reason == "STORE_QUOTA"
    assert caught.value.metadata["needed_bytes"] == str(2 * SIZE)
    assert caught.value.metadata["quota_bytes"] == str(quota)
    assert caught.value.metadata["used_bytes"] == str(bench.on_disk())
    assert len(bench.store().version_numbers("tiny")) == 3
    assert _evicted(bench.store(quota), SIZE) == [free]
    bench.now += LEASE_SECONDS
    assert _evicted(bench.store(quota), 2 * SIZE) == [leased], "its lease has expired"


def test_a_deleted_version_that_a_reader_holds_does_not_count_as_gone(bench: Bench) -> None:
    held, other = bench.add(), bench.add()
    quota = bench.store().usage().used_bytes
    bench.store().lease(*held)
    bench.store().delete_version(*held)
    assert _evicted(bench.store(quota), SIZE) == [other]


@pytest.mark.parametrize("taken", ["lease", "alias"])
def test_a_version_that_is_taken_into_use_while_it_is_evicted_stays(bench: Bench, taken: str) -> None:
    first, second = bench.add(), bench.add()
    quota = bench.store().usage().used_bytes

    def take(label: str) -> None:
        if label == "delete.draft.write" and not bench.store().list_aliases("tiny"):
            bench.store().lease(*first) if taken == "lease" else bench.store().set_alias("tiny", "prod", first.version)

    store = EngineStore(bench.root, clock=lambda: bench.now, quota_bytes=quota, failpoint=take)
    assert _evicted(store, SIZE) == [second]
    assert bench.store().get(*first).version == first.version


def test_a_version_whose_manifest_cannot_be_read_goes_first(bench: Bench) -> None:
    bench.add()
    broken = bench.add()
    quota = bench.store().usage().used_bytes
    path = bench.store().version_path(*broken) / "engine.json"
    path.chmod(0o644)
    path.write_text("{")
    assert _evicted(bench.store(quota), SIZE // 2) == [broken]


def test_collect_evicts_down_to_the_quota_and_frees_what_it_said(bench: Bench) -> None:
    first, second = bench.add(size=MIN_BLOB_BYTES), bench.add(size=MIN_BLOB_BYTES)
    store = bench.store(bench.store().usage().used_bytes - 1)
    told = store.collect(validate_only=True)
    assert (told.removed, told.evicted, told.waiting, told.blobs, told.freed_bytes) == ((), (first,), (), 0, 0)
    assert bench.store().version_numbers("tiny") == [2, 1], "it only told"
    assert store.collect()[:5] == told[:5]
    assert store.collect().waiting == (first,)
    bench.now += 2 * LEASE_SECONDS
    told, before = store.collect(validate_only=True), bench.on_disk()
    assert (told.removed, told.waiting, told.blobs) == ((first,), (), 1)
    done = store.collect()
    assert done[:5] == told[:5]
    assert done.usage == store.usage() == (bench.on_disk(), store.usage().quota_bytes)
    assert 0 <= before - done.usage.used_bytes - done.freed_bytes < 200, "but for the claim's owner"
    assert bench.store().version_numbers("tiny") == [second.version]


def test_last_use_is_when_a_reader_last_held_it_and_goes_with_the_version(bench: Bench) -> None:
    ref, store = bench.add(), bench.store()
    assert store.last_use(*ref) is None
    with store.lease(*ref) as lease:
        assert store.last_use(*ref) == bench.now
        bench.now += 20
        lease.renew()
        assert store.last_use(*ref) == bench.now
        bench.now += 20
    assert store.last_use(*ref) == bench.now
    assert [path.name for path in (bench.root / "leases").iterdir()] == ["tiny.1.used"]
    store.delete_version(*ref)
    bench.now += 2 * LEASE_SECONDS
    assert store.collect().removed == (ref,), "the record of a use is no lease"
    assert list((bench.root / "leases").iterdir()) == []


VERSIONS = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 5)), min_size=1, max_size=7)


@settings(max_examples=25, deadline=None)
@given(versions=VERSIONS, pinned=st.sets(st.integers(0, 6)), needed=st.integers(0, 60), quota=st.integers(1, 80))
def test_eviction_touches_nothing_in_use_and_ends_below_the_quota_or_refuses(
    versions: list[tuple[int, int]], pinned: set[int], needed: int, quota: int
) -> None:
    """`versions`: size in KiB, and when it was last used, 0 for never. Of the pinned ones the odd are leased, the even
    have an alias."""
    root = Path(tempfile.mkdtemp(prefix="store-quota-"))
    try:
        bench = Bench(root)
        refs = [bench.add(size=size << 10) for size, _ in versions]
        for ref, (_, when) in zip(refs, versions, strict=True):
            if when:
                bench.now += 1
                bench.store().lease(*ref).release()
                os.utime(root / "leases" / f"tiny.{ref.version}.used", (bench.now + when,) * 2)
        _pin(bench, refs, pinned)
        _check(bench, refs, {ref for index, ref in enumerate(refs) if index in pinned}, needed << 10, quota << 10)
    finally:
        shutil.rmtree(root)


def _pin(bench: Bench, refs: list[VersionRef], pinned: set[int]) -> None:
    for index, ref in enumerate(refs):
        if index in pinned and index % 2:
            bench.store().lease(*ref)
        elif index in pinned:
            bench.store().set_alias("tiny", f"a{index}", ref.version)


def _check(bench: Bench, refs: list[VersionRef], pinned: set[VersionRef], needed: int, quota: int) -> None:
    store = bench.store(quota)
    used = {ref: store.last_use(*ref) or _made(store, ref) for ref in refs}
    try:
        evicted = set(_evicted(store, needed))
    except ResourceExhausted:
        assert len(store.version_numbers("tiny")) == len(refs)
        assert _size_without(bench, set(refs) - pinned) + needed > quota
        return
    assert not evicted & pinned
    kept = set(refs) - evicted - pinned
    assert all(used[gone] <= used[left] for gone in evicted for left in kept)
    assert _size_without(bench, evicted) + needed <= quota
    if evicted:
        last = max(evicted, key=lambda ref: (used[ref], ref))
        assert _size_without(bench, evicted - {last}) + needed > quota, "one more than was needed"
    assert {VersionRef("tiny", number) for number in store.version_numbers("tiny")} == kept | pinned


def _made(store: EngineStore, ref: VersionRef) -> float:
    return datetime.fromisoformat(store.get(*ref).create_time).timestamp()


def _size_without(bench: Bench, gone: set[VersionRef]) -> int:
    folders = [bench.root / "engines" / "tiny" / "versions" / str(ref.version) for ref in gone]
    return bench.on_disk() - sum(path.stat().st_size for folder in folders for path in folder.rglob("*.*"))


def test_what_is_larger_than_the_quota_is_told_so() -> None:
    larger, other = over_quota(Usage(0, 1 << 30), 2 << 30), over_quota(Usage(1 << 30, 1 << 30), 1 << 20)
    assert "quota of 1024 MiB has no room for 2048 MiB more: raise it" in larger.message
    assert "named by aliases" in other.message
