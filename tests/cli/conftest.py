from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from structlog.testing import capture_logs

from enginehouse.cli import main
from tests.client.scripted import ScriptedServer
from tests.client.scripted_builder import ScriptedBuilderServer


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def inference() -> Iterator[ScriptedServer]:
    running = ScriptedServer()
    yield running
    running.stop()


@pytest.fixture
def builder() -> Iterator[ScriptedBuilderServer]:
    running = ScriptedBuilderServer()
    yield running
    running.stop()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `enginehouse ...` in this process."""
    for name in [name for name in os.environ if name.startswith("ENGINEHOUSE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["enginehouse", *arguments])
        capfd.readouterr()
        # The scripted servers of this process log refused calls, which a user does not see.
        with capture_logs(), pytest.raises(SystemExit) as caught:
            main()
        captured = capfd.readouterr()
        return Done(int(caught.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def at_builder(run: Run, builder: ScriptedBuilderServer, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ENGINEHOUSE_BUILDER", builder.target)
    return run


@pytest.fixture
def at_inference(run: Run, inference: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ENGINEHOUSE_TARGET", inference.target)
    return run
