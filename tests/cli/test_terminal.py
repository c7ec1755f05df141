"""What a person at a terminal sees."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from enginehouse.cli import show
from enginehouse.engine_types import VerifyReport
from tests.client.scripted_builder import ScriptedBuilderServer


@pytest.fixture
def builder() -> ScriptedBuilderServer:
    return ScriptedBuilderServer()


def test_a_build_shows_a_bar_for_each_stage(builder: ScriptedBuilderServer) -> None:
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
    assert "warning: dtype is a guess" in last
    assert "Built tiny@1" in out


def test_generated_control_characters_do_not_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\x1b[2J\tb\n\x07é"
    assert show.safe(text) == text  # into a pipe as it is
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert show.safe(text) == "a\N{REPLACEMENT CHARACTER}[2J\tb\n\N{REPLACEMENT CHARACTER}é"


def test_tokens_that_differ_below_float32_are_explained() -> None:
    exact = "64 of 64 greedy tokens equal the checkpoint's"
    assert show.verified(VerifyReport(passed=True, tokens=64, equal_tokens=64)) == exact
    assert "within rounding" in show.verified(VerifyReport(passed=True, tokens=64, equal_tokens=63))
    assert show.verified(None) == ""
