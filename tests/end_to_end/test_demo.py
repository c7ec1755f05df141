"""`make demo DTYPE=float32` as a user runs it: real daemons, the real command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from .engines import smollm2_gguf

DEMO = Path(__file__).resolve().parents[2] / "examples/demo.py"


def demo(home: Path) -> str:
    command = [sys.executable, str(DEMO), "--dtype", "float32", "--home", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expected_answer(model: Any, tokenizer: Any, question: str) -> str:
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    with torch.no_grad():
        tokens = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=64, pad_token_id=0
        )
    return str(tokenizer.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True))


@pytest.mark.timeout(600)
def test_the_demo_answers_as_transformers_does_and_builds_once(tmp_path: Path, smollm2_reference: Any) -> None:
    gguf = smollm2_gguf()
    assert gguf is not None
    first, second = demo(tmp_path), demo(tmp_path)
    assert "Built smollm2-float32@1" in first
    assert "Built" not in second
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    answers = re.findall(r"^> (.+?)\n(.*?)(?=\n> |\Z)", first, flags=re.DOTALL | re.MULTILINE)
    assert len(answers) == 3
    for question, answer in answers:
        assert answer.strip() == expected_answer(smollm2_reference, tokenizer, question).strip()
    assert first[first.index("\n> ") :] == second[second.index("\n> ") :]
