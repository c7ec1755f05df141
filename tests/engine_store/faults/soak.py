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
from tests.engine_store.faults.history import attempts, read_events
from tests.faults import shim
from tests.faults.driver import Ended, forked, start
from tests.faults.shim import DURABLE, Action, Fault, Kind

WRITERS, READERS, TRAPPED = 8, 2, 7
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
    left = [str(trap) for trap in run.traps]
    return {**run.total, "traps_left": len(left), "kills_at": dict(sorted(run.kills.items())), "left": left[:20]}


def _round(run: Soak, folder: Path, turn: int) -> None:
    root, journal, stop = folder / "store", folder / "journal", folder / f"stop{turn}"
    readers = [start(lambda: read_until(root, journal, stop)) for _ in range(READERS)]
    writers = []
    for index in range(WRITERS):
        trap = run.traps.popleft() if index < TRAPPED and run.traps else None
        seed = (run.seed * 1000 + turn) * 10 + index
        writers.append((start(lambda i=index, t=trap, s=seed: _write(root, journal, turn, i, t, s)), trap))
    for child, trap in writers:
        _count(run, child.wait(), trap)
    stop.touch()
    for reader in readers:
        ended = reader.wait()
        assert not ended.trouble, f"a reader: {ended.trouble}"
        run.total.update(ended.value)
    _check(run, root, journal, turn)


def _check(run: Soak, root: Path, journal: Path, turn: int) -> None:
    store = EngineStore(root, clock=fast_clock)
    store.recover()
    last = turn % ROUNDS_PER_STORE == ROUNDS_PER_STORE - 1
    if turn % ROUNDS_PER_STORE == 0 or last:
        run.verified.clear()
    events = read_events(journal)
    versions = laws.check(root, events, run.verified)
    assert leftovers(root) == []
    run.total["versions"] += versions if last else 0
    for attempt in attempts(events):
        if attempt.start.attempt.startswith(f"r{turn}-"):
            run.total[f"{attempt.start.op} {attempt.end.phase if attempt.end else 'killed'}"] += 1


def _write(root: Path, journal: Path, turn: int, index: int, trap: Trap | None, seed: int) -> bool:
    return Writer(root, journal, f"r{turn}-w{index}", f"shared-{turn}", seed).run(trap)


def _count(run: Soak, ended: Ended, trap: Trap | None) -> None:
    killed = trap is not None and ended.signal == signal.SIGKILL
    assert killed or not ended.trouble, f"under {trap}: {ended.trouble}"
    if trap is None:
        return
    if killed:
        run.total["kills"] += 1
        run.kills[trap.label or Kind(trap.kinds).name] += 1
    elif ended.value:
        run.total["errors_injected"] += 1
    else:
        run.total["traps_not_met"] += 1
        run.traps.append(trap)


def all_traps(scratch: Path) -> list[Trap]:
    """Every label and every call of every operation, as it runs alone on a store with two versions, with each harm.
    Kills at labels come first."""
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
    return sorted(traps, key=lambda trap: not trap.label or trap.error != 0)


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
        shim.arm(Fault(writer.store.root, kinds=kinds or DURABLE))
        writer.attempt(op)
        return labels if kinds is None else ["call"] * shim.seen()

    ended = forked(work)
    assert not ended.crash, ended.crash
    return ended.value
