"""The processes of a soak: writers that do random operations, one of them under a fault, and readers that poll."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engine_store import EngineStore
from engine_store.disk import store_errors
from engine_store.leases import LEASE_SECONDS
from enginehouse.errors import DataLoss, EnginehouseError, NotFound
from tests.engine_store.faults.history import Event, Journal, seen
from tests.engine_store.writing import manifest
from tests.faults import shim
from tests.faults.driver import forked

SPEED = 100.0
START = 1.7e9
ALIASES = ("prod", "canary")
BLOB = 1 << 20


def fast_clock() -> float:
    """A clock by which a lease ends after 0.6 s."""
    return START + (time.time() - START) * SPEED


class Trap(NamedTuple):
    """A fault in one operation: at the n-th passage of a label (`label`), or at the n-th call of these kinds."""

    op: str
    label: str
    kinds: int
    nth: int
    action: int
    error: int

    @property
    def kills(self) -> bool:
        return not self.error

    def __str__(self) -> str:
        what = self.label or shim.Kind(self.kinds).name
        how = errno.errorcode[self.error] if self.error else "kill"
        return f"{self.op}: {how} at {what} {self.nth}"


@dataclass
class Failpoint:
    """Kills or fails at the trap's label while armed."""

    trap: Trap | None = None
    passed: int = 0
    hit: bool = False

    def __call__(self, label: str) -> None:
        if self.trap is None or label != self.trap.label:
            return
        self.passed += 1
        if self.passed == self.trap.nth:
            self.hit = True
            if not self.trap.error:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(self.trap.error, label)


class Writer:
    """One writer of one round. `name` is unique in the soak."""

    def __init__(
        self,
        root: Path,
        journal: Path,
        name: str,
        shared_key: str,
        seed: int,
        failpoint: Callable[[str], None] | None = None,
    ) -> None:
        self._failpoint = Failpoint()
        self._open = lambda: EngineStore(root, failpoint=failpoint or self._failpoint, clock=fast_clock)
        self.store = self._open()
        self._path, self._journal, self._name, self._shared = journal, Journal(journal), name, shared_key
        self._random, self._count = random.Random(seed), 0
        self._pair = f"{shared_key}-pair{seed % 10 // 2}"  # a key for two writers, so that the trap is likely met

    def run(self, traps: Sequence[Trap], operations: int = 3) -> None:
        """Random operations, then the traps, each after what makes it likely to be met."""
        for op in self._random.choices(list(OPERATIONS), [weight for _, weight in OPERATIONS.values()], k=operations):
            self.attempt(op)
        for number, trap in enumerate(traps):
            self._shared = f"{self._pair}-{number}"
            self.prepare(trap.op)
            met = self._trapped(trap)
            self._journal.note(Event(phase="trap", attempt=self._name, reason="met" if met else ""))

    def prepare(self, op: str) -> None:
        """Does what gives the operation something to do."""
        for before in BEFORE.get(op, ()):
            self.attempt(before)
        if op == "recover":
            for number, label in enumerate(("publish.rename", "publish.tree.sync")):
                forked(lambda n=number, at=label: self._heir(n, at))

    def _heir(self, number: int, label: str) -> None:
        """A process that dies in the middle of publishing."""
        writer = Writer(self.store.root, self._path, f"{self._name}-{self._count}-{number}", self._shared, number)
        writer._failpoint.trap = Trap("publish own", label, 0, 1, 0, 0)
        writer.attempt("publish own")

    def _trapped(self, trap: Trap) -> bool:
        self.store = self._open()  # a new one, which does not know yet what is durable
        self._failpoint.passed, self._failpoint.hit = 0, False
        self._failpoint.trap = trap if trap.label else None
        if trap.kinds:
            action = shim.Action(trap.action)
            shim.arm(shim.Fault(self.store.root, trap.nth, action, trap.error, shim.Kind(trap.kinds)))
        self.attempt(trap.op)
        shim.disarm()
        self._failpoint.trap = None
        return self._failpoint.hit or (bool(trap.kinds) and shim.injected() > 0)

    def attempt(self, op: str) -> None:
        """One operation, noted before and after."""
        if op == "wait":
            time.sleep(3 * LEASE_SECONDS / SPEED)
            return
        self._count += 1
        wanted = Event(phase="start", attempt=f"{self._name}-{self._count}", op=op)
        try:
            got = OPERATIONS[op][0](self, wanted)
        except EnginehouseError as error:
            self._journal.note(msgspec.structs.replace(wanted, phase="failed", reason=error.reason))
        else:
            if got is not None:
                self._journal.note(got)

    def begin(self, wanted: Event, **fields: Any) -> Event:
        """Notes the start; the event that tells its end."""
        start = msgspec.structs.replace(wanted, **fields)
        self._journal.note(start)
        return msgspec.structs.replace(start, phase="done")

    def publish(self, wanted: Event, key: str, force: bool = False) -> Event:
        done = self.begin(wanted, key=key)
        with self.store.stage() as staging:
            with store_errors():
                _fill(staging.path, key, wanted.attempt)
            labels = {"attempt": wanted.attempt}
            published = staging.publish(msgspec.structs.replace(manifest(key=key), labels=labels), force=force)
        return msgspec.structs.replace(done, version=published.manifest.version, reused=published.reused)

    def any_version(self) -> int:
        numbers = self.store.version_numbers("tiny")
        return self._random.choice(numbers) if numbers else 1

    def set_alias(self, wanted: Event) -> Event:
        alias, version, etag = self._random.choice(ALIASES), self.any_version(), None
        if self._random.random() < 0.5:
            found = {item.alias: item.etag for item in self.store.list_aliases("tiny")}
            etag = found.get(alias, "0")
        done = self.begin(wanted, alias=alias, version=version, etag=etag)
        given = self.store.set_alias("tiny", alias, version, etag)
        return msgspec.structs.replace(done, etag=given.etag, time=given.update_time)

    def delete_alias(self, wanted: Event) -> Event:
        done = self.begin(wanted, alias=self._random.choice(ALIASES))
        self.store.delete_alias("tiny", done.alias)
        return done

    def delete_version(self, wanted: Event) -> Event:
        done = self.begin(wanted, version=self.any_version())
        self.store.delete_version("tiny", done.version)
        return done

    def evict(self, wanted: Event) -> Event:
        """Makes room as a builder with a quota does; each version that went is noted."""
        done = self.begin(wanted)
        quota = self.store.usage().used_bytes + BLOB
        store = EngineStore(self.store.root, failpoint=self._failpoint, clock=fast_clock, quota_bytes=quota)
        for gone in store.make_room(BLOB + 1):
            self._journal.note(Event(phase="evicted", attempt=wanted.attempt, version=gone.version))
        return done

    def clean(self, wanted: Event, what: Callable[[], object]) -> Event:
        done = self.begin(wanted)
        what()
        return done


BEFORE = {
    "set alias": ("publish own",),
    "delete alias": ("publish own", "set alias"),
    "delete version": ("publish own",),
    "evict": ("publish own",),
    "collect": ("publish own", "delete version", "wait"),
}
"""What makes it likely that the operation has something to do."""
Operation = Callable[[Writer, Event], Event | None]
OPERATIONS: dict[str, tuple[Operation, int]] = {
    "publish own": (lambda writer, wanted: writer.publish(wanted, f"own-{wanted.attempt}"), 3),
    "publish shared": (lambda writer, wanted: writer.publish(wanted, writer._shared), 3),
    "publish forced": (lambda writer, wanted: writer.publish(wanted, writer._shared, force=True), 1),
    "set alias": (Writer.set_alias, 4),
    "delete alias": (Writer.delete_alias, 1),
    "delete version": (Writer.delete_version, 2),
    "evict": (Writer.evict, 1),
    "collect": (lambda writer, wanted: writer.clean(wanted, writer.store.collect), 1),
    "recover": (lambda writer, wanted: writer.clean(wanted, writer.store.recover), 1),
}


def _fill(folder: Path, key: str, attempt: str) -> None:
    """A file that no other attempt writes, one that depends on the key, and a blob that many share."""
    (folder / "weights").mkdir()
    (folder / "graph.json").write_text(f'{{"key": "{key}", "attempt": "{attempt}"}}')
    (folder / "weights" / "rank0.safetensors").write_bytes(key.encode().ljust(4096, b"."))
    (folder / "weights" / "rank1.safetensors").write_bytes(bytes([sum(key.encode()) % 50]) * BLOB)


def read_until(root: Path, journal: Path, stop: Path) -> dict[str, int]:
    """Polls until the file `stop` is there; raises at the first sight of anything but whole versions and aliases
    whose etags grow."""
    store, notes, etags = EngineStore(root, clock=fast_clock), Journal(journal), dict.fromkeys(ALIASES, 0)
    known: set[int] = set()
    polls = verified = 0
    while not stop.exists():
        for alias in store.list_aliases("tiny"):
            assert int(alias.etag) >= etags[alias.alias], f"{alias} after {etags[alias.alias]}"
            etags[alias.alias] = int(alias.etag)
        for number in store.version_numbers("tiny")[:5]:
            verified += _read(store, number, notes, known)
        polls += 1
        time.sleep(0.005)
    return {"polls": polls, "verified": verified}


def _read(store: EngineStore, number: int, notes: Journal, known: set[int]) -> bool:
    """Reads a version as a server does, under a lease. Only a deleted one may vanish, and only without a lease."""
    began = fast_clock()
    try:
        with store.lease("tiny", number):
            found = store.get("tiny", number)
            store.verify("tiny", number)
    except NotFound:
        assert number not in store.version_numbers("tiny")
        return False
    except (DataLoss, FileNotFoundError):
        if fast_clock() - began < LEASE_SECONDS or number in store.version_numbers("tiny"):
            raise
        return False
    if number not in known:
        known.add(number)
        notes.note(seen(found))
    return True
