"""What a person at a terminal sees."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from enginehouse.cli import show
from enginehouse.engine_types import VerifyReport
from tests.client.scripted_builder import ScriptedBuilderServer


@pytest.fixture
def builder() -> ScriptedBuilderServer:
    return ScriptedBuilderServer()


def test_a_build_shows_a_bar_for_each_stage_and_how_long_it_takes_yet(builder: ScriptedBuilderServer) -> None:
    builder.operations.metadata = {"expected_end_time": datetime.now(UTC) + timedelta(minutes=30)}
    builder.builder.pause = 0.2  # longer than a bar takes to be drawn again
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "enginehouse", "build", "org/model", "--engine", "tiny"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "ENGINEHOUSE_BUILDER": builder.target}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave, env=environment, text=True)
    os.close(slave)
    seen = b""
    try:
        while chunk := os.read(master, 65536):
            seen += chunk
    except OSError:  # the other end is closed
        pass
    os.close(master)
    out, _ = process.communicate(timeout=30)
    builder.stop()
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode()).replace("\r", "")
    for stage in ("fetching", "converting", "publishing"):
        assert re.search(rf"{stage} +\S+ +100%", last), last
    assert re.search(r"5 of 10 tensors, about (29|30) min left", last), last
    assert "warning: dtype is a guess" in last
    assert "Built tiny@1" in out


def test_generated_control_characters_do_not_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\x1b[2J\tb\n\x07é"
    assert show.safe(text) == text  # into a pipe as it is
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert show.safe(text) == "a\N{REPLACEMENT CHARACTER}[2J\tb\n\N{REPLACEMENT CHARACTER}é"


def test_the_time_left_is_for_people() -> None:
    now = datetime.now(UTC)
    assert show.remaining(None) == ""
    assert re.fullmatch(r"about (29|30) s left", show.remaining(now + timedelta(seconds=30)))
    assert show.remaining(now + timedelta(minutes=5, seconds=2)) == "about 5 min left"
    assert show.remaining(now - timedelta(minutes=5)) == "about 0 s left"


def test_tokens_that_differ_below_float32_are_explained() -> None:
    exact = "64 of 64 greedy tokens equal the checkpoint's"
    assert show.verified(VerifyReport(passed=True, tokens=64, equal_tokens=64)) == exact
    assert "within rounding" in show.verified(VerifyReport(passed=True, tokens=64, equal_tokens=63))
    assert show.verified(None) == ""
