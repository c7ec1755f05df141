"""Opens damaged files for so many seconds, in children of this process that may not crash, hang or take memory.

python -m tests.fuzz.file_worker fuzz HOME SEED SECONDS     prints one JSON report
python -m tests.fuzz.file_worker replay HOME FAULT          opens the tree of a fault that was kept
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["FUZZ_EXAMPLES"] = sys.argv[2] if len(sys.argv) > 2 else "."

from enginehouse.errors import EnginehouseError, to_status

from .laws import broken_status
from .openers import KINDS, WEIGHTS, Kind, copy_example, make_examples

BATCH = 60
"""Inputs of one child."""
CPU_SECONDS = 5.0
"""The most for one input; on the wall clock ten times that, as the machine has other work."""
MEMORY_BYTES, MEMORY_FACTOR = 96 << 20, 64
"""What one input may take: so much, and so many times its size."""
ADDRESS_SPACE = 4 << 30
"""Beyond what the child has at its start: an allocation by a number in a file fails."""


class Input:
    """One damaged file, made from the seed and its number alone."""

    def __init__(self, seed: str, number: int) -> None:
        self.dice = random.Random(f"{seed}/{number}")
        names = list(KINDS)
        self.name = self.dice.choices(names, [WEIGHTS.get(name, 1) for name in names])[0]
        self.kind: Kind = KINDS[self.name]

    def write(self, folder: Path) -> tuple[Path, int]:
        """The example's tree under `folder` with its file damaged; and the size of that."""
        tree = copy_example(self.kind, folder)
        target = self.dice.choice(sorted(path for path in tree.glob(self.kind.file) if path.is_file()))
        data = self.kind.damage(self.dice, target.read_bytes())
        target.unlink()
        target.write_bytes(data)
        return tree, len(data)


def fuzz(home: Path, seed: str, seconds: float) -> dict[str, Any]:
    """The report: inputs, outcomes and faults by kind; the slowest and the largest."""
    make_examples(home)
    report: dict[str, Any] = {"inputs": Counter(), "outcomes": Counter(), "faults": [], "slowest": 0.0, "memory": 0}
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until and len(report["faults"]) < 25:
        number = _batch(home, seed, number, until, report)
    report["inputs"], report["outcomes"] = dict(report["inputs"]), dict(report["outcomes"].most_common())
    return report


def _batch(home: Path, seed: str, first: int, until: float, report: dict[str, Any]) -> int:
    """Runs a child over some inputs; the number of the next one."""
    folder = home / "work"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(folder, seed, first, until, os.fdopen(writing, "wb"))
    os.close(writing)
    number = first
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        for line in _lines(pipe):
            _count(report, home, folder, number, line)
            number += 1
        hangs = select.select([pipe], [], [], 0)[0] == []
    if hangs:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        what = f"no end within {10 * CPU_SECONDS:g} s" if hangs else f"the process ended with {status}"
        _fault(report, home, folder, number, Input(seed, number).name, what)
        number += 1
    return number


def _lines(pipe: BinaryIO) -> Any:
    """Reports of the child until it is done, dead, or silent for too long."""
    rest = b""
    while select.select([pipe], [], [], 10 * CPU_SECONDS)[0]:
        data = pipe.read(65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from (json.loads(line) for line in lines)


def _count(report: dict[str, Any], home: Path, folder: Path, number: int, line: dict[str, Any]) -> None:
    report["inputs"][line["kind"]] += 1
    report["outcomes"][line["outcome"]] += 1
    report["slowest"] = max(report["slowest"], line["seconds"])
    report["memory"] = max(report["memory"], line["memory"])
    if line["fault"]:
        _fault(report, home, folder, number, line["kind"], line["fault"])


def _fault(report: dict[str, Any], home: Path, folder: Path, number: int, kind: str, what: str) -> None:
    """Keeps the tree, each sort of fault once."""
    sort = f"{kind}: {what[:120]}"
    if sort in [fault["sort"] for fault in report["faults"]]:
        return
    kept = home / "faults" / f"{len(report['faults'])}-{kind.replace(' ', '_')}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder / str(number), kept, symlinks=True)
    again = f"python -m tests.fuzz.file_worker replay {home} {kept}"
    report["faults"].append({"sort": sort, "what": what, "replay": again})


def _child(folder: Path, seed: str, first: int, until: float, pipe: BinaryIO) -> None:
    """Never returns. The trees of inputs that broke nothing are removed."""
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE, used + ADDRESS_SPACE))
        for number in range(first, first + BATCH):
            place = folder / str(number)
            line = _open(Input(seed, number), place)
            pipe.write(json.dumps(line).encode() + b"\n")
            pipe.flush()
            if not line["fault"]:
                shutil.rmtree(place, ignore_errors=True)
            if time.monotonic() > until:
                break
    except BaseException:
        traceback.print_exc()
        os._exit(3)
    os._exit(0)


def _open(given: Input, place: Path) -> dict[str, Any]:
    place.mkdir()
    tree, size = given.write(place)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began = _status("VmRSS"), time.process_time()
    outcome, fault = outcome_of(given.kind, tree)
    seconds, memory = time.process_time() - began, _status("VmHWM") - before
    if not fault and seconds > CPU_SECONDS:
        fault = f"took {seconds:.1f} s of the processor"
    if not fault and memory > MEMORY_BYTES + MEMORY_FACTOR * size:
        fault = f"took {memory >> 20} MiB for a file of {size} bytes"
    return {"kind": given.name, "outcome": outcome, "seconds": seconds, "memory": memory, "fault": fault}


def outcome_of(kind: Kind, tree: Path) -> tuple[str, str]:
    """How opening ended, "ok" or the reason; and why that is a fault."""
    try:
        kind.read(tree)
    except EnginehouseError as error:
        return error.reason, broken_status(to_status(error))
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.name}"
        return "fault", f"{type(error).__name__} in {where}: {str(error)[:200]}"
    return "ok", ""


def _status(field: str) -> int:
    """Bytes, of a line of /proc/self/status."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) << 10


def replay(fault: Path) -> None:
    """Opens the tree of a kept fault, with the whole traceback."""
    kind = KINDS[fault.name.partition("-")[2].replace("_", " ")]
    kind.read(fault / kind.tree)
    print("opens well")


if __name__ == "__main__":
    if sys.argv[1] == "replay":
        replay(Path(sys.argv[3]))
    else:
        Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
        print("\n" + json.dumps(fuzz(Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]))))
