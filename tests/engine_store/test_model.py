"""Random histories of a store against a model of a few dictionaries."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine_store import EngineStore, Lease
from engine_store.leases import LEASE_SECONDS
from enginehouse.errors import Aborted, FailedPrecondition, NotFound, ResourceExhausted
from tests.engine_store.writing import publish

SMALL = 1 << 12
KEYS = st.sampled_from(["k1", "k2", "k3"])
ALIASES = st.sampled_from(["prod", "canary"])
NUMBERS = st.integers(1, 6)
QUOTA = 5 * SMALL


class StoreHistory(RuleBasedStateMachine):
    """The model: which version has which key, which are deleted, where aliases point and their etags."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.now = 1000.0
        self.store = EngineStore(self.root, clock=lambda: self.now, quota_bytes=QUOTA)
        self.keys: dict[int, str] = {}
        self.claimed = 0
        self.aliases: dict[str, int] = {}
        self.etags: dict[str, str] = {}
        self.leases: dict[int, Lease] = {}
        self.renewed: dict[int, float] = {}
        self.used: dict[int, float] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule(key=KEYS, force=st.booleans())
    def publish(self, key: str, force: bool) -> None:
        found = [number for number, carried in self.keys.items() if carried == key]
        published = publish(self.store, key=key, force=force, size=SMALL)
        assert published.reused == (bool(found) and not force)
        if published.reused:
            assert published.manifest.version == max(found)
            return
        assert published.manifest.version > self.claimed
        self.claimed = published.manifest.version
        self.keys[self.claimed] = key

    @rule(version=NUMBERS)
    def delete(self, version: int) -> None:
        try:
            self.store.delete_version("tiny", version)
        except NotFound:
            assert version not in self.keys
        except FailedPrecondition:
            assert version in self.aliases.values()
        else:
            assert version not in self.aliases.values()
            del self.keys[version]

    @rule(alias=ALIASES, version=NUMBERS, fresh=st.booleans())
    def set_alias(self, alias: str, version: int, fresh: bool) -> None:
        etag = self.etags.get(alias, "0") if fresh else "stale"
        try:
            done = self.store.set_alias("tiny", alias, version, etag)
        except NotFound:
            assert version not in self.keys
        except Aborted:
            assert not fresh
        else:
            assert fresh
            assert done.etag != etag
            self.aliases[alias], self.etags[alias] = version, done.etag

    @rule(alias=ALIASES)
    def delete_alias(self, alias: str) -> None:
        try:
            self.store.delete_alias("tiny", alias)
        except NotFound:
            assert alias not in self.aliases
        else:
            del self.aliases[alias], self.etags[alias]

    @rule(version=NUMBERS)
    def lease(self, version: int) -> None:
        try:
            self.leases[version] = self.store.lease("tiny", version)
        except NotFound:
            assert version not in self.keys
        else:
            self.renewed[version] = self.used[version] = self.now

    @rule(version=NUMBERS, release=st.booleans())
    def renew_or_release(self, version: int, release: bool) -> None:
        if version in self.leases:
            self.leases[version].release() if release else self.leases[version].renew()
            lost = self.renewed[version] + LEASE_SECONDS <= self.now  # its files may have gone since it expired
            self.used[version] = self.now
            if not lost:
                self.renewed[version] = self.now
            if release or lost:
                self.leases.pop(version).release()
                del self.renewed[version]

    @rule(needed=st.integers(0, QUOTA))
    def make_room(self, needed: int) -> None:
        try:
            evicted = {manifest.version for manifest in self.store.make_room(needed)}
        except ResourceExhausted:
            evicted = set()
        self._evicted(evicted)

    @rule(seconds=st.sampled_from([1.0, 59.0, 119.0, 500.0]))
    def clear_up(self, seconds: float) -> None:
        self.now += seconds
        self._evicted({version for _, version in self.store.collect().evicted})
        assert self.store.recover() == (0, 0, 0)

    def _evicted(self, versions: set[int]) -> None:
        held = {version for version, when in self.renewed.items() if when + LEASE_SECONDS > self.now}
        assert versions <= self.keys.keys() - held - set(self.aliases.values())
        for version in versions:
            del self.keys[version]

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        assert self.store.version_numbers("tiny") == sorted(self.keys, reverse=True)
        assert {alias.alias: alias.version for alias in self.store.list_aliases("tiny")} == self.aliases
        for key in ("k1", "k2", "k3"):
            found = self.store.find("tiny", key)
            newest = max((number for number, carried in self.keys.items() if carried == key), default=None)
            assert (found.version if found else None) == newest
        for number in self.keys:
            self.store.verify("tiny", number)
            assert self.store.last_use("tiny", number) == self.used.get(number)
        for version, when in self.renewed.items():
            if when + LEASE_SECONDS > self.now:
                assert (self.root / "engines" / "tiny" / "versions" / str(version) / "graph.json").exists()


TestStoreHistory = StoreHistory.TestCase
TestStoreHistory.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)


def test_an_alias_never_ends_up_on_a_deleted_version(tmp_path: Path) -> None:
    """Setting an alias races with deleting its version: one of the two is refused, or both are."""
    store = EngineStore(tmp_path)
    for turn in range(12):
        version = publish(store, key=f"k{turn}", size=SMALL).manifest.version
        barrier = threading.Barrier(2)

        def delete(barrier: threading.Barrier = barrier, version: int = version) -> None:
            barrier.wait()
            with contextlib.suppress(FailedPrecondition):
                store.delete_version("tiny", version)

        thread = threading.Thread(target=delete)
        thread.start()
        barrier.wait()
        with contextlib.suppress(NotFound):
            store.set_alias("tiny", "prod", version)
        thread.join()
        if any(alias.version == version for alias in store.list_aliases("tiny")):
            assert store.resolve("tiny", "prod").version == version


def test_recovery_removes_what_a_killed_collector_had_set_aside(tmp_path: Path) -> None:
    """A version that was moved aside for removal still has its manifest: it must not come back."""

    class Stop(Exception):
        pass

    def stop(label: str) -> None:
        if label == "collect.remove":
            raise Stop

    publish(EngineStore(tmp_path), size=SMALL)
    EngineStore(tmp_path, clock=lambda: 0.0).delete_version("tiny", 1)
    with pytest.raises(Stop):
        EngineStore(tmp_path, failpoint=stop).collect()
    aside = next((tmp_path / "staging").iterdir())
    boot, namespace, _, _, rest = aside.name.split(".")
    aside.rename(aside.with_name(f"{boot}.{namespace}.999999999.1.{rest}"))  # as if its process had died
    assert EngineStore(tmp_path).recover() == (0, 1, 0)
    assert EngineStore(tmp_path).version_numbers("tiny") == []
