from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from builder_service.job import SourceSpec
from builder_service.sources import Checkpoint, open_checkpoint
from enginehouse.errors import EnginehouseError, FailedPrecondition, NotFound, Unimplemented


def open_directory(path: Path, cache: Path) -> Checkpoint:
    return open_checkpoint(SourceSpec(kind="huggingface", path=str(path)), cache)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def sharded(make_checkpoint) -> Path:
    directory = make_checkpoint("qwen3", "bfloat16", max_shard_size="30KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    return directory


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_tensor_equals_the_models(make_checkpoint, cache, family, dtype):
    directory = make_checkpoint(family, dtype)
    checkpoint = open_directory(directory, cache)
    expected = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).state_dict()
    assert checkpoint.dtype == dtype
    assert checkpoint.names() == expected.keys()
    for name, tensor in expected.items():
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert checkpoint.nbytes(name) == tensor.nbytes
        assert torch.equal(checkpoint.tensor(name), tensor)


def test_shards_are_read_as_one_checkpoint(sharded, cache):
    checkpoint = open_directory(sharded, cache)
    expected = AutoModelForCausalLM.from_pretrained(sharded, dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in expected.items())


def test_the_tokenizer_directory_holds_what_a_server_needs(make_checkpoint, cache, tmp_path):
    destination = tmp_path / "tokenizer"
    destination.mkdir()
    open_directory(make_checkpoint(), cache).write_tokenizer(destination)
    names = {file.name for file in destination.iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"} <= names


def test_a_checkpoint_without_a_tokenizer_opens(make_checkpoint, cache, tmp_path):
    directory = make_checkpoint()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (directory / name).unlink()
    destination = tmp_path / "tokenizer"
    destination.mkdir()
    open_directory(directory, cache).write_tokenizer(destination)
    assert not (destination / "tokenizer.json").exists()


def test_a_tokenizer_that_cannot_be_read_is_refused(make_checkpoint, cache, tmp_path):
    directory = make_checkpoint()
    (directory / "tokenizer.json").write_text("{")
    with pytest.raises(FailedPrecondition, match="download it again") as caught:
        open_directory(directory, cache).write_tokenizer(tmp_path)
    assert caught.value.reason == "TOKENIZER_UNREADABLE"


@pytest.mark.parametrize("name", ["a" * 300 + ".safetensors", "../model.safetensors", "\0.safetensors", "", "x.bin"])
def test_an_index_that_names_no_file_beside_it_is_refused(make_checkpoint, cache, edit, name):
    directory = make_checkpoint(max_shard_size="40KB")

    def rename(index):
        index["weight_map"][next(iter(index["weight_map"]))] = name

    edit(directory / "model.safetensors.index.json", rename)
    with pytest.raises(FailedPrecondition) as caught:
        open_directory(directory, cache)
    assert caught.value.reason in ("CHECKPOINT_CORRUPT", "CHECKPOINT_MISSING_SHARD")


def test_a_tokenizer_that_panics_is_refused(make_checkpoint, cache, tmp_path, edit):
    directory = make_checkpoint()
    both = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    template = {"type": "TemplateProcessing", "single": both, "pair": both, "special_tokens": {}}
    edit(directory / "tokenizer.json", lambda content: content.update(post_processor=template))
    with pytest.raises(FailedPrecondition) as caught:
        open_directory(directory, cache).write_tokenizer(tmp_path)
    assert caught.value.reason == "TOKENIZER_UNREADABLE"


def test_older_tokenizer_files_become_a_fast_tokenizer(make_checkpoint, cache, tmp_path):
    directory = make_checkpoint("qwen2")
    model = json.loads((directory / "tokenizer.json").read_text())["model"]
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.json").write_text(json.dumps(model["vocab"]))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    destination = tmp_path / "tokenizer"
    destination.mkdir()
    open_directory(directory, cache).write_tokenizer(destination)
    assert AutoTokenizer.from_pretrained(destination).encode("ab") == [model["vocab"]["a"], model["vocab"]["b"]]


def test_the_digest_is_stable_and_covers_every_byte(make_checkpoint, cache):
    directory = make_checkpoint()
    steps: list[tuple[int, int]] = []
    first = open_directory(directory, cache).digest(lambda done, total: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1] > 0
    assert open_directory(directory, cache).digest(lambda *_: None) == first
    assert open_directory(directory, cache.with_name("other")).digest(lambda *_: None) == first
    weights = directory / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert open_directory(directory, cache).digest(lambda *_: None) != first


def test_stray_files_are_reported_and_left_out(make_checkpoint, cache):
    directory = make_checkpoint()
    shutil.copy(directory / "model.safetensors", directory / "consolidated.safetensors")
    (directory / "modeling_custom.py").write_text("raise SystemExit")
    notes = open_directory(directory, cache).notes
    assert any("consolidated.safetensors" in note for note in notes)
    assert any("modeling_custom.py" in note for note in notes)


def fails(directory: Path, cache: Path, kind: type[EnginehouseError], reason: str) -> EnginehouseError:
    with pytest.raises(kind) as caught:
        open_directory(directory, cache)
    assert caught.value.reason == reason
    return caught.value


def test_a_missing_directory_is_not_found(tmp_path, cache):
    error = fails(tmp_path / "nowhere", cache, NotFound, "SOURCE_NOT_FOUND")
    assert str(tmp_path / "nowhere") in error.message


def test_a_directory_without_config_is_no_checkpoint(tmp_path, cache):
    assert "config.json" in fails(tmp_path, cache, FailedPrecondition, "NOT_A_CHECKPOINT").message


def test_a_config_that_is_no_json_is_named(make_checkpoint, cache):
    directory = make_checkpoint()
    (directory / "config.json").write_text("{")
    assert fails(directory, cache, FailedPrecondition, "CHECKPOINT_CORRUPT").metadata["file"] == "config.json"


@pytest.mark.parametrize("cut", [1, 1000])
def test_a_truncated_file_is_named(make_checkpoint, cache, cut):
    directory = make_checkpoint()
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-cut])
    error = fails(directory, cache, FailedPrecondition, "CHECKPOINT_TRUNCATED")
    assert error.metadata["file"] == "model.safetensors"


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"\xff" * 64, b"\x00" * 64])
def test_a_file_without_a_header_is_truncated(make_checkpoint, cache, content):
    directory = make_checkpoint()
    (directory / "model.safetensors").write_bytes(content)
    fails(directory, cache, FailedPrecondition, "CHECKPOINT_TRUNCATED")


def test_bytes_after_the_last_tensor_are_refused(make_checkpoint, cache):
    directory = make_checkpoint()
    with (directory / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    fails(directory, cache, FailedPrecondition, "CHECKPOINT_CORRUPT")


def test_a_missing_shard_is_named(sharded, cache):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    assert fails(sharded, cache, FailedPrecondition, "CHECKPOINT_MISSING_SHARD").metadata["file"] == shard.name


def test_a_tensor_that_only_the_index_knows_is_named(sharded, cache, edit):
    index = sharded / "model.safetensors.index.json"
    edit(index, lambda content: content["weight_map"].update({"ghost": next(iter(content["weight_map"].values()))}))
    assert fails(sharded, cache, FailedPrecondition, "CHECKPOINT_MISSING_TENSOR").metadata["tensor"] == "ghost"


def test_a_tensor_that_the_index_does_not_know_is_named(sharded, cache, edit):
    index = sharded / "model.safetensors.index.json"
    edit(index, lambda content: content["weight_map"].pop("model.norm.weight"))
    error = fails(sharded, cache, FailedPrecondition, "CHECKPOINT_STRAY_TENSOR")
    assert error.metadata["tensor"] == "model.norm.weight"


def test_a_tensor_in_two_shards_is_refused(sharded, cache, edit):
    from safetensors.torch import load_file, save_file

    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    doubled = next(iter(load_file(first)))
    save_file({**load_file(second), doubled: load_file(first)[doubled]}, second)
    assert fails(sharded, cache, FailedPrecondition, "CHECKPOINT_DUPLICATE_TENSOR").metadata["tensor"] == doubled


def test_an_index_cannot_point_outside_the_directory(sharded, cache, edit):
    index = sharded / "model.safetensors.index.json"
    edit(index, lambda content: content["weight_map"].update({"x": "../secret.safetensors"}))
    fails(sharded, cache, FailedPrecondition, "CHECKPOINT_CORRUPT")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"]
)
def test_a_git_lfs_pointer_is_recognised(make_checkpoint, cache, name):
    directory = make_checkpoint()
    (directory / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    error = fails(directory, cache, FailedPrecondition, "CHECKPOINT_LFS_POINTER")
    assert "git lfs pull" in error.message
    assert error.metadata["file"] == name


def test_pickled_weights_are_refused(make_checkpoint, cache):
    directory = make_checkpoint()
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    fails(directory, cache, FailedPrecondition, "PICKLED_WEIGHTS")


def test_a_checkpoint_without_weights_is_refused(make_checkpoint, cache):
    directory = make_checkpoint()
    (directory / "model.safetensors").unlink()
    fails(directory, cache, FailedPrecondition, "CHECKPOINT_NO_WEIGHTS")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_in_the_checkpoint_is_refused_and_not_run(make_checkpoint, cache, edit, tmp_path, name):
    directory, marker = make_checkpoint(), tmp_path / "ran"
    (directory / "custom.py").write_text(f"open({str(marker)!r}, 'w')")
    edit(directory / name, lambda content: content.update(auto_map={"AutoModelForCausalLM": "custom.Model"}))
    fails(directory, cache, Unimplemented, "REMOTE_CODE")
    assert not marker.exists()


def test_a_quantised_checkpoint_is_refused_by_its_method(make_checkpoint, cache, edit):
    directory = make_checkpoint()
    edit(directory / "config.json", lambda content: content.update(quantization_config={"quant_method": "gptq"}))
    assert fails(directory, cache, Unimplemented, "UNSUPPORTED_QUANTIZATION").metadata["method"] == "gptq"


def test_a_field_of_another_kind_of_source_is_refused(make_checkpoint, cache):
    spec = SourceSpec(kind="huggingface", path=str(make_checkpoint()), revision="main")
    with pytest.raises(Unimplemented, match=r"source\.revision"):
        open_checkpoint(spec, cache)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_header_gives_a_typed_error_or_the_same_layout(make_checkpoint, cache, data):
    directory = cache.parent / "llama-float32"
    if not directory.exists():
        make_checkpoint()
        shutil.copy(directory / "model.safetensors", cache.parent / "good")
    good = (cache.parent / "good").read_bytes()
    length = 8 + struct.unpack("<Q", good[:8])[0]
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, length - 1))] = data.draw(st.integers(0, 255))
    (directory / "model.safetensors").write_bytes(damaged)
    try:
        checkpoint = open_directory(directory, cache)
    except EnginehouseError:
        pass  # any other exception fails the test
    else:
        assert sum(checkpoint.nbytes(name) for name in checkpoint.names()) == len(good) - length
