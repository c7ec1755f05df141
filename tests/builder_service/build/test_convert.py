from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from builder_service.build.convert import check_parameters, convert, plan_layout
from builder_service.job import SourceSpec
from builder_service.models import read_spec, weight_parts
from builder_service.sources import open_checkpoint
from builder_service.sources.dummy import DummyCheckpoint
from enginehouse.errors import FailedPrecondition, Unimplemented


def open_directory(path: Path):
    return open_checkpoint(SourceSpec(kind="huggingface", path=str(path)), path.parent / "cache")


def convert_to(path: Path, checkpoint, dtype: str) -> Path:
    steps: list[tuple[int, int]] = []
    parts = weight_parts(read_spec(checkpoint.config))
    convert(checkpoint, parts, dtype, path, lambda *step: steps.append(step))
    assert steps[-1][0] == steps[-1][1] == plan_layout(parts, dtype).data_bytes
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    return path


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_file_holds_the_parts_stacked_and_cast(make_checkpoint, tmp_path, family, dtype):
    checkpoint = open_directory(make_checkpoint(family))
    parts = weight_parts(read_spec(checkpoint.config))
    written = load_file(convert_to(tmp_path / "w.safetensors", checkpoint, dtype))
    assert list(written) == list(parts)
    for name, part in parts.items():
        expected = torch.cat([checkpoint.tensor(source) for source in part.names]).to(getattr(torch, dtype))
        assert torch.equal(written[name], expected), name


def test_the_file_is_deterministic(make_checkpoint, tmp_path):
    checkpoint = open_directory(make_checkpoint())
    first = convert_to(tmp_path / "a", checkpoint, "bfloat16").read_bytes()
    assert convert_to(tmp_path / "b", checkpoint, "bfloat16").read_bytes() == first


def test_tensors_larger_than_a_write_are_whole(make_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("builder_service.sources.base.BLOCK_BYTES", 100)
    checkpoint = open_directory(make_checkpoint())
    path = convert_to(tmp_path / "w.safetensors", checkpoint, "float32")
    with safe_open(path, framework="pt") as file:
        assert torch.equal(file.get_tensor("embed.weight"), checkpoint.tensor("model.embed_tokens.weight"))


def change_weights(directory: Path, change) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def refused(directory: Path, kind, reason: str, tensor: str) -> None:
    checkpoint = open_directory(directory)
    spec = read_spec(checkpoint.config)
    with pytest.raises(kind) as caught:
        check_parameters(checkpoint, weight_parts(spec), spec.tied_head)
    assert (caught.value.reason, caught.value.metadata["tensor"]) == (reason, tensor)


def test_a_missing_parameter_is_named(make_checkpoint):
    directory = make_checkpoint()
    change_weights(directory, lambda tensors: tensors.pop("model.layers.1.self_attn.v_proj.weight"))
    refused(directory, FailedPrecondition, "CHECKPOINT_MISSING_TENSOR", "model.layers.1.self_attn.v_proj.weight")


def test_a_parameter_of_another_shape_is_named(make_checkpoint):
    directory = make_checkpoint()
    change_weights(directory, lambda tensors: tensors.update({"model.norm.weight": torch.ones(7)}))
    refused(directory, FailedPrecondition, "CHECKPOINT_SHAPE_MISMATCH", "model.norm.weight")


@pytest.mark.parametrize("name", ["model.layers.3.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"])
def test_a_tensor_that_would_be_left_out_is_refused(make_checkpoint, name):
    directory = make_checkpoint()
    change_weights(directory, lambda tensors: tensors.update({name: torch.ones(8)}))
    refused(directory, Unimplemented, "UNSUPPORTED_TENSOR", name)


def test_constants_of_older_checkpoints_are_ignored(make_checkpoint):
    directory = make_checkpoint(tie_word_embeddings=True)
    change_weights(
        directory, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    )
    checkpoint = open_directory(directory)
    spec = read_spec(checkpoint.config)
    check_parameters(checkpoint, weight_parts(spec), spec.tied_head)


def test_a_tied_head_must_equal_the_embedding(make_checkpoint):
    directory = make_checkpoint(tie_word_embeddings=True)
    head = load_file(directory / "model.safetensors")["model.embed_tokens.weight"].clone()
    change_weights(directory, lambda tensors: tensors.update({"lm_head.weight": head}))
    checkpoint = open_directory(directory)
    spec = read_spec(checkpoint.config)
    check_parameters(checkpoint, weight_parts(spec), spec.tied_head)
    head[0, 0] += 1
    change_weights(directory, lambda tensors: tensors.update({"lm_head.weight": head}))
    refused(directory, FailedPrecondition, "CHECKPOINT_HEAD_DIFFERS", "lm_head.weight")


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), "float32"), (float("inf"), "bfloat16"), (1e5, "float16")])
def test_a_value_that_does_not_fit_is_refused(make_checkpoint, tmp_path, value, dtype):
    directory = make_checkpoint()
    change_weights(directory, lambda tensors: tensors["model.norm.weight"].__setitem__(3, value))
    with pytest.raises(FailedPrecondition, match=r"model\.norm\.weight") as caught:
        convert_to(tmp_path / "w", open_directory(directory), dtype)
    assert caught.value.reason == "WEIGHT_NOT_FINITE"


def test_dummy_weights_depend_on_their_names_alone(make_checkpoint, tmp_path, monkeypatch):
    directory = make_checkpoint("qwen2")
    (directory / "model.safetensors").unlink()
    first, again = DummyCheckpoint(directory), DummyCheckpoint(directory)
    q, k = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"
    assert torch.equal(first.tensor(q), again.tensor(q))
    assert not torch.equal(first.tensor(q)[:24], first.tensor(k))
    monkeypatch.setattr("builder_service.sources.dummy.DISTINCT", 100)
    convert_to(tmp_path / "w", first, "bfloat16")
    assert first.tensor(q).flatten()[:100].tolist() == first.tensor(q).flatten()[100:200].tolist()
