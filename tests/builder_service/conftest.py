"""Tiny random checkpoints of each family, as Hugging Face directories and as GGUF files."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.builder_service.gguf_files import write_gguf_file
from tests.builder_service.serving import Remote, running, settings

SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def random_model(family: str, dtype: str = "float32", **overrides: Any) -> Any:
    """A random model of a family. Weights are large enough that its layers matter to its logits."""
    config = transformers.AutoConfig.for_model(family, **{**SHAPE, **overrides})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.2)
            else:
                parameter.uniform_(0.6, 1.4)
    return model.to(getattr(torch, dtype))


@pytest.fixture(name="make_model")
def _make_model() -> Callable[..., Any]:
    return random_model


def make_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer of 101 tokens: three special ones and printable ASCII."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    characters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ", "é", "Ã", "©"]
    tokens = ["<pad>", "<s>", "</s>", *characters][:101]
    tokenizer = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(directory)


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Writes a checkpoint directory and returns it: make_checkpoint(family, dtype, max_shard_size=..., **config)."""

    def make(family: str = "llama", dtype: str = "float32", max_shard_size: str = "5GB", **overrides: Any) -> Path:
        directory = tmp_path / f"{family}-{dtype}"
        random_model(family, dtype, **overrides).save_pretrained(directory, max_shard_size=max_shard_size)
        make_tokenizer(directory)
        return directory

    return make


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.fixture
def edit() -> Callable[[Path, Callable[[dict[str, Any]], None]], None]:
    return edit_json


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model as a GGUF file and returns it: write_gguf(model, architecture, pre=..., extra=...)."""

    def write(model: Any, architecture: str, **options: Any) -> Path:
        path = tmp_path / f"{architecture}.gguf"
        write_gguf_file(model, path, architecture, **options)
        return path

    return write


@pytest.fixture
async def remote(tmp_path: Path) -> AsyncIterator[Remote]:
    """A builder daemon with scripted children."""
    async with running(settings(tmp_path)) as made:
        yield made
