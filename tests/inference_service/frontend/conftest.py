from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .serving import Rig, serve


@pytest.fixture
async def rig(tmp_path: Path, bytes_tokenizer_dir: Path) -> AsyncIterator[Rig]:
    async with serve(tmp_path, bytes_tokenizer_dir) as rig:
        yield rig
