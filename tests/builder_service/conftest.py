"""Tiny random checkpoints of each family, as Hugging Face directories and as GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers

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


def permute_rows(weight: Any, heads: int) -> Any:
    """llama.cpp's order of q and k rows: the halves of a head interleaved (its converter's `permute`)."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face parameter."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{parts[module]}.{kind}"


BYTE_TOKENS = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ", "é", "Ã"]


def add_tensor(writer: gguf.GGUFWriter, name: str, array: Any, quantization: gguf.GGMLQuantizationType) -> None:
    """Adds a tensor; matrices are quantised, vectors stay float32, as llama.cpp does it."""
    if array.ndim == 1 or quantization == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, array)
    else:
        writer.add_tensor(name, gguf.quants.quantize(array, quantization), raw_dtype=quantization)


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model as a GGUF file and returns it: write_gguf(model, architecture, pre=..., extra=...)."""

    def write(
        model: Any,
        architecture: str,
        pre: str = "qwen2",
        extra: Callable[[Any], None] | None = None,
        quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    ) -> Path:
        path, config = tmp_path / f"{architecture}.gguf", model.config
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        tokens = ["<pad>", "<s>", "</s>", *BYTE_TOKENS][: config.vocab_size]
        writer.add_token_list(tokens)
        writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
        writer.add_token_merges([])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template("{{ messages[0]['content'] }}")
        if extra is not None:
            extra(writer)
        for name, tensor in model.state_dict().items():
            array = tensor.float().numpy()
            if architecture == "llama" and ".q_proj." in name:
                array = permute_rows(array, config.num_attention_heads)
            if architecture == "llama" and ".k_proj." in name:
                array = permute_rows(array, config.num_key_value_heads)
            if name != "lm_head.weight" or not config.tie_word_embeddings:
                add_tensor(writer, gguf_name(name), array, quantization)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
