"""Rounds of eight writers and two readers on one store, with a trap for most of the writers."""

from __future__ import annotations

import errno
import random
import signal
import subprocess
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_store import EngineStore
from tests.engine_store.faults import laws
from tests.engine_store.faults.actors import OPERATIONS, Trap, Writer, fast_clock, read_until
from tests.engine_store.faults.checks import leftovers
from tests.engine_store.faults.history import Event, attempts, read_events
from tests.faults import shim
from tests.faults.driver import Ended, forked, start
from tests.faults.shim import DURABLE, Action, Fault, Kind

WRITERS, READERS, TRAPPED, TRAPS_PER_WRITER = 8, 2, 7, 3
ROUNDS_PER_STORE = 10
GROUPS = (Kind.WRITE, Kind.FSYNC, Kind.RENAME | Kind.LINK, Kind.OPEN | Kind.MKDIR | Kind.UNLINK | Kind.RMDIR)
HARMS = ((Action.FAIL, errno.EIO), (Action.FAIL, errno.ENOSPC), (Action.KILL_BEFORE, 0), (Action.KILL_AFTER, 0))


@dataclass
class Soak:
    """A soak as it runs: its traps (what was not met comes back), and what it counted."""

    seed: int
    traps: deque[Trap]
    total: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    verified: set[int] = field(default_factory=set)

    def next_traps(self) -> list[Trap]:
        """Some traps for one writer, those that kill last."""
        traps = [self.traps.popleft() for _ in range(min(TRAPS_PER_WRITER, len(self.traps)))]
        return sorted(traps, key=lambda trap: trap.kills)

    def count(self, ended: Ended, traps: list[Trap], survived: list[bool]) -> None:
        """Takes in how a writer ended. Traps that it did not meet come again."""
        for trap, met in zip(traps, survived, strict=False):
            self.total["errors_injected"] += met
            self.again(*[trap] * (not met))
        self.again(*traps[len(survived) + 1 :])
        if not ended.signal:
            assert not ended.trouble, ended.trouble
            return
        assert ended.signal == signal.SIGKILL
        trap = traps[len(survived)]
        assert trap.kills, f"killed by {trap}"
        self.total["kills"] += 1
        self.kills[trap.label or Kind(trap.kinds).name] += 1

    def again(self, *traps: Trap) -> None:
        """Puts traps back."""
        self.traps.extend(traps)
        self.total["traps_not_met"] += len(traps)


def soak(scratch: str, rounds: int, seed: int) -> dict[str, Any]:
    """Runs the rounds; what they amounted to."""
    run = Soak(seed, deque(all_traps(Path(scratch))))
    run.total.update(rounds=rounds, traps=len(run.traps))
    for turn in range(rounds):
        folder = Path(scratch) / f"store{turn // ROUNDS_PER_STORE}"
        folder.mkdir(exist_ok=True)
        try:
            _round(run, folder, turn)
        except BaseException as error:
            error.add_note(f"in round {turn} of seed {seed}")
            raise
    never = sorted({trap.label for trap in run.traps if trap.label and trap.kills} - run.kills.keys())
    left = {"traps_left": len(run.traps), "labels_never_killed": never}
    return {**run.total, **left, "kills_at": dict(sorted(run.kills.items()))}


def _round(run: Soak, folder: Path, turn: int) -> None:
    root, journal, stop = folder / "store", folder / "journal", folder / f"stop{turn}"
    readers = [start(lambda: read_until(root, journal, stop)) for _ in range(READERS)]
    writers = []
    for index in range(WRITERS):
        name, traps = f"r{turn}-w{index}", run.next_traps() if index < TRAPPED else []
        seed = (run.seed * 1000 + turn) * 10 + index
        writer = start(lambda n=name, s=seed, t=traps: Writer(root, journal, n, f"shared-{turn}", s).run(t))
        writers.append((name, writer, traps))
    ends = [(name, writer.wait(), traps) for name, writer, traps in writers]
    stop.touch()
    for reader in readers:
        ended = reader.wait()
        assert not ended.trouble, f"a reader: {ended.trouble}"
        run.total.update(ended.value)
    events = read_events(journal)
    for name, ended, traps in ends:
        survived = [event.reason == "met" for event in events if event.phase == "trap" and event.attempt == name]
        run.count(ended, traps, survived)
    _check(run, root, events, turn)


def _check(run: Soak, root: Path, events: list[Event], turn: int) -> None:
    EngineStore(root, clock=fast_clock).recover()
    last = turn % ROUNDS_PER_STORE == ROUNDS_PER_STORE - 1
    if turn % ROUNDS_PER_STORE == 0 or last:
        run.verified.clear()
    versions = laws.check(root, events, run.verified)
    assert leftovers(root) == []
    run.total["versions"] += versions if last else 0
    for attempt in attempts(events):
        if attempt.start.attempt.startswith(f"r{turn}-"):
            run.total[f"{attempt.start.op} {attempt.end.phase if attempt.end else 'killed'}"] += 1


def all_traps(scratch: Path) -> list[Trap]:
    """Every label and every call of every operation, as it runs alone on a store with two versions, with each harm."""
    template, traps = scratch / "template", []
    forked(lambda: _prepare(template))
    for op in OPERATIONS:
        for label, count in Counter(_trace(template, op, None)).items():
            for nth in range(1, count + 1):
                traps += [Trap(op, label, 0, nth, 0, 0), Trap(op, label, 0, nth, 0, errno.EIO)]
        for kinds in GROUPS:
            for nth in range(1, len(_trace(template, op, kinds)) + 1):
                traps += [Trap(op, "", int(kinds), nth, int(action), error) for action, error in HARMS]
    random.Random(1).shuffle(traps)
    return traps


def _prepare(folder: Path) -> None:
    folder.mkdir()
    writer = Writer(folder / "store", folder / "journal", "trace", "shared", 1)
    for op in ("publish own", "publish own", "set alias", "delete version"):
        writer.attempt(op)


def _trace(template: Path, op: str, kinds: Kind | None) -> list[str]:
    """The labels that the operation passes, or one entry for each call of these kinds."""
    copy = template.parent / "copy"
    subprocess.run(["rm", "-rf", str(copy)], check=True)
    subprocess.run(["cp", "-a", str(template), str(copy)], check=True)

    def work() -> list[str]:
        labels: list[str] = []
        writer = Writer(copy / "store", copy / "journal", "copy", "shared", 1, labels.append)
        writer.prepare(op)
        writer.store = EngineStore(copy / "store", failpoint=labels.append, clock=fast_clock)
        labels.clear()
        shim.arm(Fault(writer.store.root, kinds=kinds or DURABLE))
        writer.attempt(op)
        return labels if kinds is None else ["call"] * shim.seen()

    ended = forked(work)
    assert not ended.crash, ended.crash
    return ended.value
