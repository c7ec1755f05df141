"""Power cuts: records what processes do to a store, rebuilds what the disk may hold at each point, and checks it."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine_store import EngineStore
from enginehouse.errors import EnginehouseError
from tests.engine_store.faults.actors import ALIASES, Writer
from tests.engine_store.faults.checks import leftovers
from tests.engine_store.faults.history import Event
from tests.faults import shim
from tests.faults.driver import forked, start
from tests.faults.power_cut import Bytes, Disk, Keep, all_bytes, everything, nothing_more, safe_bytes, some, torn_bytes
from tests.faults.shim import Action, Call, Fault, Kind


class Marker:
    """A journal that writes its events into the log of calls, between them."""

    def note(self, event: Event) -> None:
        shim.mark(msgspec.json.encode(event).decode())


class Recording(NamedTuple):
    """The calls below `root`. `killed`: the last process met a fault."""

    calls: list[Call]
    root: str
    killed: bool


class Cut(NamedTuple):
    """A disk after the cut: which unsafe changes and data it kept."""

    name: str
    keep: Keep
    content: Bytes


def _writer(root: Path, name: str, seed: int) -> Writer:
    writer = Writer(root, Path("/dev/null"), name, "shared", seed)
    writer._journal = Marker()
    return writer


def one_writer(root: Path) -> None:
    """Every operation, one after the other."""
    writer = _writer(root, "w0", 3)
    operations = (
        "publish own", "set alias", "publish shared", "set alias", "publish shared", "publish forced", "set alias",
        "delete alias", "delete version", "publish own", "set alias", "delete version", "collect", "recover",
    )  # fmt: skip
    for op in operations:
        writer.attempt(op)


def two_writers(root: Path) -> None:
    """Two processes at once on the same names and keys."""
    children = [start(lambda n=n: _some(root, f"w{n}", n)) for n in range(2)]
    for child in children:
        ended = child.wait()
        assert not ended.crash, ended.crash


def _some(root: Path, name: str, seed: int) -> None:
    writer = _writer(root, name, seed)
    for op in ("publish shared", "set alias", "publish own", "delete alias", "set alias", "delete version"):
        writer.attempt(op)


SCENARIOS: dict[str, Callable[[Path], None]] = {"one writer": one_writer, "two writers": two_writers}


def record(scratch: Path, work: Callable[[Path], None], fault: Fault | None = None) -> Recording:
    """Runs `work` on a store in a process of its own, which ends, so that its staging is a dead writer's. The log is
    continued when there is one."""
    root, log = scratch / "disk", scratch / "log"
    root.mkdir(exist_ok=True)

    def recorded() -> None:
        with shim.recorded(fault or Fault(root), log):
            work(root / "store")

    ended = forked(recorded)
    assert ended.signal == signal.SIGKILL or not ended.trouble, ended.trouble
    return Recording(shim.read_log(log), str(root), bool(ended.signal))


def cuts(seeds: int, base: int) -> Iterator[Cut]:
    """The disks to look at: the least, the most, entries without data, data without entries, and random ones."""
    yield Cut("least", nothing_more, safe_bytes)
    yield Cut("most", everything, all_bytes)
    yield Cut("no unsynced data", everything, safe_bytes)
    for seed in range(base, base + seeds):
        yield Cut(f"random {seed}", some(seed), torn_bytes(seed))


def power_cuts(scratch: str, scenario: str, seeds: int, points: int, lying: bool) -> dict[str, int]:
    """Cuts the power at each point (or at `points` random ones, where it is not 0) and checks each disk."""
    recording = record(Path(scratch), SCENARIOS[scenario])
    count = len(recording.calls)
    chosen = random.Random(7).sample(range(count), min(points or count, count))
    return {"calls": count, "disks": _check_cuts(Path(scratch), recording, set(chosen), seeds, lying)}


def heirs(scratch: str, step: int, seeds: int) -> dict[str, int]:
    """A writer is killed right after its call 1, 1 + step, ...; another does the same work to its end; then the power
    is cut: the second must not have relied on what the first had not yet synced."""
    done = Counter({"kills": 0, "disks": 0})
    for nth in range(1, 1000, step):
        folder = Path(scratch) / str(nth)
        folder.mkdir()
        first = record(folder, lambda root: _some(root, "first", 1), Fault(folder / "disk", nth, Action.KILL_AFTER))
        both = record(folder, lambda root: _some(root, "heir", 1))
        done["disks"] += _check_cuts(folder, both, _points(len(first.calls), both.calls), seeds, lying=False)
        shutil.rmtree(folder)
        if not first.killed:
            return dict(done)
        done["kills"] += 1
    raise AssertionError("the calls never ended")


def _points(start: int, calls: list[Call]) -> set[int]:
    """Where to cut after a writer died at call `start`: at the end, and half way; after a change of a name, which the
    next writer sees before it is safe, at each of that one's first calls."""
    named = calls[start - 1].kind in (Kind.LINK, Kind.RENAME)
    return {(start + len(calls)) // 2, len(calls) - 1, *range(start, min(start + 40, len(calls)) if named else start)}


def _check_cuts(scratch: Path, recording: Recording, chosen: set[int], seeds: int, lying: bool) -> int:
    """Checks the disks of the chosen points; their number."""
    disk, done, checked = Disk(recording.root), [], 0
    versions, check = _published(recording), check_lying if lying else check_honest
    for index, call in enumerate(recording.calls):
        disk.play(call, lying)
        if call.kind == Kind.MARK:
            done.append(msgspec.json.decode(call.path, type=Event))
        for cut in cuts(seeds, index * 1000) if index in chosen else ():
            target = scratch / "after"
            disk.write_to(target, cut.keep, cut.content)
            try:
                check(target / "store", done, versions)
            except BaseException as error:
                error.add_note(f"cut after call {index} of {len(recording.calls)}: {call[:5]}; disk: {cut.name}")
                raise
            shutil.rmtree(target)
            checked += 1
    return checked


def _published(recording: Recording) -> dict[str, bytes]:
    """By attempt, the bytes of engine.json as its writer wrote them."""
    found = {}
    for call in recording.calls:
        if call.kind == Kind.WRITE and call.path.endswith("/engine.json"):
            found[msgspec.json.decode(call.data)["labels"]["attempt"]] = call.data
    return found


def check_honest(root: Path, events: list[Event], versions: dict[str, bytes]) -> None:
    """After a cut of a disk whose fsync works: whole versions only, all that was acknowledged, nothing left over."""
    store = EngineStore(root)
    store.recover()
    live = set(store.version_numbers("tiny"))
    for number in live:
        attempt = store.get("tiny", number).labels["attempt"]
        assert (store.version_path("tiny", number) / "engine.json").read_bytes() == versions[attempt]
        store.verify("tiny", number)
    _versions_are_there(store, live, events)
    for alias in ALIASES:
        _alias_is_there(store, alias, [event for event in events if event.alias == alias])
    assert leftovers(root) == []
    again = Writer(root, Path("/dev/null"), "after", "shared", 1)
    done = again.publish(Event(phase="start", attempt="after-1"), "after")
    assert done.version not in {event.version for event in events if event.phase == "done"}
    store.verify("tiny", done.version)


def _versions_are_there(store: EngineStore, live: set[int], events: list[Event]) -> None:
    tried = [event.version for event in events if event.op == "delete version"]
    for event in events:
        if event.phase != "done":
            continue
        if event.op == "delete version":
            assert event.version not in live, f"{event} came back"
        elif event.op.startswith("publish") and event.version not in tried:
            assert event.version in live, f"{event} is lost"
            assert store.get("tiny", event.version).build_key == event.key


def _alias_is_there(store: EngineStore, alias: str, events: list[Event]) -> None:
    """The alias is as some acknowledged or begun change left it, none older than the last acknowledged one."""
    found = {item.alias: item.version for item in store.list_aliases("tiny")}.get(alias, 0)
    last = max((index for index, event in enumerate(events) if event.phase == "done"), default=-1)
    allowed = {0} if last < 0 else {_target(events[last])}
    ended = {event.attempt for event in events[: last + 1] if event.phase != "start"}
    allowed |= {_target(event) for event in events if event.phase == "start" and event.attempt not in ended}
    assert found in allowed, f"{alias} leads to {found}, not one of {allowed}"


def _target(event: Event) -> int:
    return event.version if event.op == "set alias" else 0


def check_lying(root: Path, events: list[Event], versions: dict[str, bytes]) -> None:
    """After a cut of a disk whose fsync did nothing: anything may be lost, but what is damaged is told."""
    store = EngineStore(root)
    store.recover()
    for number in store.version_numbers("tiny"):
        try:
            manifest = store.get("tiny", number)
            store.verify("tiny", number)
        except EnginehouseError:
            continue
        written = (store.version_path("tiny", number) / "engine.json").read_bytes()
        assert written == versions[manifest.labels["attempt"]], f"version {number} is silently another"
    targets = {event.version for event in events if event.op == "set alias"}
    for alias in ALIASES:
        try:
            assert store.get_alias("tiny", alias).version in targets
        except EnginehouseError:
            continue
    try:
        done = Writer(root, Path("/dev/null"), "after", "shared", 1).publish(
            Event(phase="start", attempt="after-1"), "after"
        )
    except EnginehouseError:
        return
    store.verify("tiny", done.version)
