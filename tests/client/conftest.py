from __future__ import annotations

from collections.abc import Iterator

import pytest

from enginehouse import LLM
from tests.client.scripted import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    running = ScriptedServer()
    yield running
    running.stop()


@pytest.fixture
def llm(server: ScriptedServer) -> Iterator[LLM]:
    with LLM("tiny", target=server.target) as client:
        yield client
