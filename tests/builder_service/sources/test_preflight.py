"""Hostile and broken checkpoint directories: each law is a typed error that names the file, and the tensor."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from builder_service.build.convert import check_parameters, plan_layout
from builder_service.job import SourceSpec
from builder_service.models import read_spec, weight_parts
from builder_service.sources import open_checkpoint, open_dummy
from builder_service.sources.safetensors_header import read_header
from enginehouse.errors import EnginehouseError, FailedPrecondition, InvalidArgument, Unimplemented


def check(directory: Path) -> None:
    """All that a build does before it reads a tensor."""
    checkpoint = open_checkpoint(SourceSpec(kind="huggingface", path=str(directory)), directory.parent / "cache")
    spec = read_spec(checkpoint.config)
    check_parameters(checkpoint, weight_parts(spec), spec.tied_head)


def refused(directory: Path, reason: str, kind: type[EnginehouseError] = FailedPrecondition) -> dict[str, str]:
    with pytest.raises(kind) as caught:
        check(directory)
    assert caught.value.reason == reason
    return caught.value.metadata


@pytest.fixture
def directory(make_checkpoint) -> Path:
    return make_checkpoint()


@pytest.fixture
def sharded(make_checkpoint) -> Path:
    return make_checkpoint("qwen3", "bfloat16", max_shard_size="30KB")


# Names in the directory


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "other.safetensors", "adapter_model.safetensors"])
def test_weights_beside_the_single_file_are_refused_by_name(directory, name):
    shutil.copy(directory / "model.safetensors", directory / name)
    assert refused(directory, "CHECKPOINT_STRAY_FILE")["file"] == name


def test_weights_that_the_index_does_not_name_are_refused(sharded):
    shutil.copy(next(sharded.glob("model-*.safetensors")), sharded / "model.safetensors")
    assert refused(sharded, "CHECKPOINT_STRAY_FILE")["file"] == "model.safetensors"


def test_parts_without_an_index_are_refused(sharded):
    (sharded / "model.safetensors.index.json").unlink()
    assert refused(sharded, "CHECKPOINT_NO_INDEX")["file"] == "model.safetensors.index.json"


def test_second_copies_and_pickles_beside_the_weights_are_notes(directory):
    shutil.copy(directory / "model.safetensors", directory / "consolidated-00001.safetensors")
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x04")
    checkpoint = open_checkpoint(SourceSpec(kind="huggingface", path=str(directory)), directory.parent / "cache")
    assert any("consolidated-00001.safetensors is a second copy" in note for note in checkpoint.notes)
    assert any("pytorch_model.bin is pickled" in note for note in checkpoint.notes)


@pytest.mark.parametrize("name", ["Config.json", "MODEL.safetensors", "tokenizer.JSON"])
def test_names_that_differ_in_case_alone_are_refused(directory, name):
    (directory / name).write_text("{}")
    assert refused(directory, "CHECKPOINT_DUPLICATE_FILE")["file"] == name


@pytest.mark.parametrize("target", ["nowhere", "model.safetensors"])
def test_a_link_that_leads_nowhere_is_a_missing_file(directory, target):
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").symlink_to(target)
    refused(directory, "CHECKPOINT_NO_WEIGHTS")


def test_a_link_within_the_checkpoint_is_followed(directory):
    (directory / "model.safetensors").rename(directory / "blob")
    (directory / "model.safetensors").symlink_to("blob")
    check(directory)


def test_a_pipe_in_place_of_a_file_does_not_hang(directory):
    (directory / "config.json").unlink()
    os.mkfifo(directory / "config.json")
    refused(directory, "NOT_A_CHECKPOINT")


def test_a_file_that_may_not_be_read_is_named(directory, monkeypatch):
    real = Path.open

    def fails(self, *arguments, **options):
        if self.name == "model.safetensors":
            raise PermissionError(13, "Permission denied")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", fails)
    assert refused(directory, "CHECKPOINT_UNREADABLE")["file"] == "model.safetensors"


@pytest.mark.parametrize(("code", "kind"), [(5, FailedPrecondition), (116, FailedPrecondition), (28, OSError)])
def test_a_disk_that_fails_while_tensors_are_read_names_the_file(directory, monkeypatch, code, kind):
    checkpoint = open_checkpoint(SourceSpec(kind="huggingface", path=str(directory)), directory.parent / "cache")

    def fails(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(kind) as caught:
        checkpoint.tensor("model.norm.weight")
    if kind is FailedPrecondition:
        assert (caught.value.reason, caught.value.metadata["file"]) == ("CHECKPOINT_UNREADABLE", "model.safetensors")


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_not_a_crash(directory):
    checkpoint = open_checkpoint(SourceSpec(kind="huggingface", path=str(directory)), directory.parent / "cache")
    os.truncate(directory / "model.safetensors", 4000)
    with pytest.raises(FailedPrecondition) as caught:
        [checkpoint.tensor(name) for name in checkpoint.names()]
    assert caught.value.reason == "CHECKPOINT_TRUNCATED"


# Code


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", {"vision_config": {"auto_map": {"AutoModel": "x.Y"}}}),
        ("config.json", {"layers": [{"deep": [{"auto_map": {}}]}]}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["x.Y", None]}}),
        ("generation_config.json", {"auto_map": {}}),
        ("processor_config.json", {"auto_map": {"AutoProcessor": "x.Y"}}),
        ("preprocessor_config.json", {"auto_map": {"AutoImageProcessor": "x.Y"}}),
    ],
)
def test_auto_map_is_refused_wherever_it_stands(directory, name, content):
    file = directory / name
    file.write_text(json.dumps({**(json.loads(file.read_text()) if file.exists() else {}), **content}))
    assert refused(directory, "REMOTE_CODE", Unimplemented)["file"] == name


# config.json


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": "3"},
        {"num_hidden_layers": 3.0},
        {"num_hidden_layers": None},
        {"num_hidden_layers": True},
        {"hidden_size": 10**12},
        {"hidden_size": 0},
        {"vocab_size": [101]},
        {"num_attention_heads": 0},
        {"num_key_value_heads": 5},
        {"head_dim": -8},
        {"intermediate_size": {}},
        {"max_position_embeddings": 10**30},
        {"rms_norm_eps": -1},
        {"rms_norm_eps": "x" * 100_000},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 1e300}},
        {"rope_parameters": [[[[]]]]},
        {"architectures": 7},
        {"architectures": ["x" * 1_000_000]},
        {"tie_word_embeddings": "yes"},
    ],
)
def test_hostile_values_are_typed_errors_without_work_in_proportion(directory, edit, change):
    edit(directory / "config.json", lambda config: config.update(change))
    tracemalloc.start()
    with pytest.raises((InvalidArgument, Unimplemented, FailedPrecondition)) as caught:
        check(directory)
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()
    assert caught.value.reason in {
        "INVALID_MODEL_CONFIG",
        "UNSUPPORTED_MODEL_CONFIG",
        "UNSUPPORTED_ARCHITECTURE",
        "CHECKPOINT_CORRUPT",
    }


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999", "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500])
def test_values_that_are_no_json_or_nested_too_deep_are_refused(directory, text):
    raw = (directory / "config.json").read_text().rstrip().rstrip("}")
    (directory / "config.json").write_text(f'{raw}, "hidden_size": {text}}}')
    with pytest.raises(EnginehouseError) as caught:
        check(directory)
    assert caught.value.reason in {"CHECKPOINT_CORRUPT", "INVALID_MODEL_CONFIG"}


def test_dummy_weights_of_an_absurd_model_cost_nothing_until_they_are_drawn(directory, edit):
    huge = {"hidden_size": 2**30, "intermediate_size": 2**31 - 1, "vocab_size": 2**31 - 1, "num_hidden_layers": 1024}
    edit(directory / "config.json", lambda config: config.update(huge, head_dim=2**20))
    tracemalloc.start()
    spec = SourceSpec(kind="huggingface", path=str(directory))
    checkpoint = open_dummy(spec, directory.parent / "cache", False, lambda *_: None, seed=0)
    parts = weight_parts(read_spec(checkpoint.config))
    assert plan_layout(parts, "bfloat16").data_bytes > 1 << 60
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


# Headers of safetensors files

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def header(path: Path, content: Any, data: bytes = bytes(8)) -> Path:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


HEADERS: dict[str, Any] = {
    "twice": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],'
    b'"data_offsets":[0,8]}}',
    "twice inside": b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "overlap": {"a": ENTRY, "b": {**ENTRY, "data_offsets": [4, 12]}},
    "gap": {"a": {**ENTRY, "shape": [1], "data_offsets": [4, 8]}},
    "backwards": {"a": {**ENTRY, "data_offsets": [8, 0]}},
    "negative": {"a": {**ENTRY, "shape": [-2]}},
    "product": {"a": {**ENTRY, "shape": [2**62, 2**62, 0, 2**62]}, "b": {**ENTRY, "shape": [2**62, 2**62]}},
    "wraps to 8": {"a": {**ENTRY, "shape": [2**63 + 2]}},
    "boolean": {"a": {**ENTRY, "shape": [True, 2]}},
    "real": {"a": {**ENTRY, "shape": [2.0]}},
    "many dims": {"a": {**ENTRY, "shape": [1] * 100 + [2]}},
    "long number": b'{"a":{"dtype":"F32","shape":[' + b"9" * 100_000 + b'],"data_offsets":[0,8]}}',
    "no dtype": {"a": {"shape": [2], "data_offsets": [0, 8]}},
    "more keys": {"a": {**ENTRY, "code": "x"}},
    "three offsets": {"a": {**ENTRY, "data_offsets": [0, 4, 8]}},
    "no object": {"a": [0, 8]},
    "metadata number": {"a": ENTRY, "__metadata__": {"format": 1}},
    "metadata list": {"a": ENTRY, "__metadata__": ["pt"]},
    "control name": {"a\n\x1b[2J": ENTRY},
    "surrogate name": b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "long name": {"a" * 10_000: ENTRY},
    "list": b"[]",
    "deep": b"[" * 200_000,
    "not text": b"\xff\xfe{}",
    "nan": b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}',
    "bytes after": b"{}",
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_damaged_header_names_the_file(tmp_path, case):
    with pytest.raises(FailedPrecondition) as caught:
        read_header(header(tmp_path / "w.safetensors", HEADERS[case]))
    assert caught.value.reason == "CHECKPOINT_CORRUPT"
    assert caught.value.metadata["file"] == "w.safetensors"


@pytest.mark.parametrize("dtype", ["I64", "F8_E4M3", "F64", "BOOL", "U8", "F4", "", 7, None, [], {"a": 1}])
def test_a_type_that_no_parameter_has_is_refused_with_its_tensor(tmp_path, dtype):
    path = header(tmp_path / "w.safetensors", {"a.weight": {**ENTRY, "dtype": dtype}})
    with pytest.raises(FailedPrecondition, match=r"a\.weight") as caught:
        read_header(path)
    assert caught.value.reason == "UNSUPPORTED_TENSOR_TYPE"
    assert (caught.value.metadata["tensor"], caught.value.metadata["dtype"]) == ("a.weight", str(dtype))


@pytest.mark.parametrize("length", [100_000_001, 1 << 40, (1 << 64) - 1])
def test_a_header_beyond_its_limit_is_not_read(tmp_path, length):
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", length))
        file.truncate(200_000_000)  # sparse
    tracemalloc.start()
    with pytest.raises(FailedPrecondition) as caught:
        read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert caught.value.reason == "CHECKPOINT_TRUNCATED"


def test_a_header_of_millions_of_objects_is_refused_before_it_is_parsed(tmp_path):
    raw = b'{"a":{"shape":[' + b"0," * 3_000_000 + b"0]}}"
    path = header(tmp_path / "w.safetensors", raw)
    tracemalloc.start()
    with pytest.raises(FailedPrecondition, match="values"):
        read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 3 * len(raw)
    tracemalloc.stop()


def test_a_tensor_without_elements_is_read_and_fits_no_parameter(directory):
    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:0].clone()
    save_file(tensors, directory / "model.safetensors")
    metadata = refused(directory, "CHECKPOINT_SHAPE_MISMATCH")
    assert (metadata["tensor"], metadata["shape"]) == ("model.norm.weight", "[0]")


@pytest.mark.parametrize("dtype", ["int64", "float64", "float8_e4m3fn", "bool"])
def test_one_parameter_of_another_type_is_named(directory, dtype):
    import torch

    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(getattr(torch, dtype))
    save_file(tensors, directory / "model.safetensors")
    metadata = refused(directory, "UNSUPPORTED_TENSOR_TYPE")
    assert (metadata["file"], metadata["tensor"]) == ("model.safetensors", "model.norm.weight")


def test_a_name_that_the_index_gives_twice_is_refused(sharded):
    index = sharded / "model.safetensors.index.json"
    first = sorted(file.name for file in sharded.glob("model-*.safetensors"))[0]
    text = index.read_text().replace('"weight_map": {', f'"weight_map": {{"model.norm.weight": "{first}",', 1)
    assert '"model.norm.weight": "' + first in text
    index.write_text(text)
    assert refused(sharded, "CHECKPOINT_CORRUPT")["file"] == index.name


def test_every_parameter_of_a_good_checkpoint_is_counted_once(sharded):
    checkpoint = open_checkpoint(SourceSpec(kind="huggingface", path=str(sharded)), sharded.parent / "cache")
    parts = weight_parts(read_spec(checkpoint.config)).values()
    names = [name for part in parts for name in part.names]
    assert sorted(names) == sorted(checkpoint.names())
    assert sum(2 * math.prod(checkpoint.shape(name)) for name in names) == sum(map(checkpoint.nbytes, names))
