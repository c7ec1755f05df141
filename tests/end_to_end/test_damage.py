"""An engine whose record was changed is refused before it runs: requests are held to the record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine_store import EngineStore
from enginehouse.errors import DataLoss
from inference_service.engine_loader import load_checked

from .engines import Engine, model_config


@pytest.fixture
def rewritten(tiny: Callable[[str], tuple[Engine, Any]], tmp_path: Path) -> Callable[[dict[str, Any]], None]:
    """Loads the engine with changes in its engine.json."""
    engine, _ = tiny("llama-gqa")

    def load(changes: dict[str, Any]) -> None:
        path = engine.directory / "engine.json"
        record = json.loads(path.read_text())
        for key, value in changes.items():
            if key == "cache_groups":
                record[key][0] |= value
            elif isinstance(value, dict):
                record[key] |= value
            else:
                record[key] = value
        path.chmod(0o644)
        path.write_text(json.dumps(record))
        manifest = EngineStore(tmp_path / "store").get("engine", engine.manifest.version)
        load_checked(engine.directory, manifest, model_config()).close()

    return load


def test_the_record_as_it_was_built_is_loaded(rewritten: Callable[[dict[str, Any]], None]) -> None:
    rewritten({})


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 10**9},
        {"vocab_size": 5},
        {"vocab_size": -1},
        {"eos_token_ids": [10**9]},
        {"eos_token_ids": [-7]},
        {"limits": {"max_seq_len": 10**9}},
        {"limits": {"max_batch_size": 0}},
        {"limits": {"max_num_tokens": -1}},
        {"cache_groups": {"block_size": 0}},
        {"cache_groups": {"block_size": 10**9}},
        {"cache_groups": {"num_kv_heads": 0}},
        {"cache_groups": {"head_dim": 2}},
        {"cache_groups": {"layers": []}},
        {"cache_groups": {"layers": list(range(99))}},
        {"cache_groups": {"dtype": "float16"}},
    ],
    ids=json.dumps,
)
def test_a_record_that_does_not_fit_its_graph_is_refused(
    rewritten: Callable[[dict[str, Any]], None], changes: dict[str, Any]
) -> None:
    with pytest.raises(DataLoss):
        rewritten(changes)
