"""A model as a GGUF file, as llama.cpp's converter writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf


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


def numbered_tokens(model: Any) -> list[str]:
    """A vocabulary of the model's size: t0, t1, ..."""
    return [f"t{number}" for number in range(model.config.vocab_size)]


def write_gguf_file(
    model: Any,
    path: Path,
    architecture: str = "llama",
    *,
    tokens: Sequence[str] = ("<pad>", "<s>", "</s>", *BYTE_TOKENS),
    pre: str = "qwen2",
    extra: Callable[[Any], None] | None = None,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> None:
    """Writes the model. `tokens` is cut to its vocabulary; `extra` may add more to the writer."""
    config = model.config
    tokens = list(tokens)[: config.vocab_size]
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
