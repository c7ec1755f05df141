"""Files that the builder and the store read, damaged: refused by a typed error, in bounded time and memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from .daemons import ROOT


def fuzz(home: Path, seconds: float) -> None:
    seed = os.environ.get("FUZZ_SEED") or str(random.SystemRandom().randrange(1 << 32))
    seconds = float(os.environ.get("FUZZ_SECONDS") or seconds)
    command = [sys.executable, "-m", "tests.fuzz.file_worker", "fuzz", str(home), seed, str(seconds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 120)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])  # libraries may have printed before
    lines = [
        f"fuzz of files: {sum(report['inputs'].values())} inputs, {len(report['faults'])} faults",
        f"  inputs: {report['inputs']}",
        f"  outcomes: {report['outcomes']}",
        f"  slowest {report['slowest']:.2f} s of the processor, most memory {report['memory'] >> 20} MiB",
        f"  seed: FUZZ_SEED={seed}",
        *(f"  FAULT {fault['sort']}\n    {fault['what']}\n    {fault['replay']}" for fault in report["faults"]),
    ]
    print("\n".join(lines))
    if report["faults"]:
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.mark.timeout(300)
def test_no_damaged_file_breaks_what_opens_it(tmp_path: Path) -> None:
    fuzz(tmp_path, 8)


@pytest.mark.long
def test_no_damaged_file_breaks_what_opens_it_in_ten_minutes(tmp_path: Path) -> None:
    fuzz(tmp_path, 600)
