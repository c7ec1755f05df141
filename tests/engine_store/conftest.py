from __future__ import annotations

from pathlib import Path

import pytest

from engine_store import EngineStore


@pytest.fixture
def store(tmp_path: Path) -> EngineStore:
    return EngineStore(tmp_path / "store")
