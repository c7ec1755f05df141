from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from enginehouse.errors import FailedPrecondition, InvalidArgument
from inference_service.text.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "hello"}]


def test_encode_and_decode_equal_transformers(tokenizer: Tokenizer, tokenizer_dir: Path) -> None:
    reference = AutoTokenizer.from_pretrained(tokenizer_dir)
    text = "the fox , 🌶"
    ids = reference(text)["input_ids"]
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_a_rendered_chat_has_exactly_one_bos(tokenizer: Tokenizer) -> None:
    text = tokenizer.render_chat(MESSAGES)
    assert text == "<s>user: hello<|im_end|>assistant:"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids.count(tokenizer.bos_token_id) == 1


def test_template_options_reach_the_template(tokenizer: Tokenizer) -> None:
    assert tokenizer.render_chat(MESSAGES, options={"flavour": "sweet"}).endswith("assistant:sweet")


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "messages", "max_length"])
def test_options_that_would_steer_the_renderer_are_refused(tokenizer: Tokenizer, name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        tokenizer.render_chat(MESSAGES, options={name: True})


def test_a_template_cannot_reach_python(tokenizer_dir: Path) -> None:
    (tokenizer_dir / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InvalidArgument, match="template refused"):
        Tokenizer(tokenizer_dir).render_chat(MESSAGES)


def test_no_template_is_a_failed_precondition(tokenizer_dir: Path) -> None:
    (tokenizer_dir / "chat_template.jinja").unlink()
    with pytest.raises(FailedPrecondition, match="chat template"):
        Tokenizer(tokenizer_dir).render_chat(MESSAGES)


def test_remote_code_is_refused(tokenizer_dir: Path) -> None:
    config = json.loads((tokenizer_dir / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": ["evil.Tokenizer", None]}
    (tokenizer_dir / "tokenizer_config.json").write_text(json.dumps(config))
    (tokenizer_dir / "evil.py").write_text(f"open({str(tokenizer_dir / 'marker')!r}, 'w')")
    with pytest.raises(FailedPrecondition, match="remote code"):
        Tokenizer(tokenizer_dir)
    assert not (tokenizer_dir / "marker").exists()


def test_an_empty_directory_is_a_failed_precondition(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("damage", ["{", "[]", '{"tokenizer_class": 5}', '{"eos_token": false}', "[" * 100_000])
def test_a_damaged_tokenizer_is_a_failed_precondition(tokenizer_dir: Path, name: str, damage: str) -> None:
    (tokenizer_dir / name).write_text(damage)
    with pytest.raises(FailedPrecondition) as caught:
        Tokenizer(tokenizer_dir)
    assert caught.value.reason == "TOKENIZER_UNUSABLE"


def test_a_tokenizer_that_panics_is_a_failed_precondition(tokenizer_dir: Path) -> None:
    content = json.loads((tokenizer_dir / "tokenizer.json").read_text())
    both = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    content["post_processor"] = {"type": "TemplateProcessing", "single": both, "pair": both, "special_tokens": {}}
    (tokenizer_dir / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Tokenizer(tokenizer_dir)
    for encode in (tokenizer.encode, tokenizer.encode_with_offsets):
        with pytest.raises(FailedPrecondition) as caught:
            encode("hello")
        assert caught.value.reason == "TOKENIZER_UNUSABLE"


def test_only_special_tokens_have_a_special_id(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_token_id("</s>") == tokenizer.eos_token_id
    assert tokenizer.special_token_id("a") is None
    assert tokenizer.special_token_id("no such token") is None


def test_files_are_those_of_the_directory(tokenizer: Tokenizer) -> None:
    names = [path.name for path in tokenizer.files()]
    assert names == sorted(names)
    assert "tokenizer.json" in names
