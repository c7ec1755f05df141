from __future__ import annotations

import itertools
import os
import platform
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from builder_service.build import pipeline
from builder_service.build.pipeline import run_build
from builder_service.job import (
    BuildConfig,
    BuildJob,
    ChildEvent,
    KeyEvent,
    LogEvent,
    ProgressEvent,
    ResultEvent,
    SourceSpec,
    Stage,
    StageEvent,
)
from engine_ops.graph import decode
from engine_store import EngineStore, Manifest
from enginehouse.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unimplemented

FAMILIES = {
    "llama": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    "mistral": {"sliding_window": 7},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"attention_bias": True},
}
STAGES = [
    Stage.FETCHING,
    Stage.CONVERTING,
    Stage.CAPTURING,
    Stage.COMPILING,
    Stage.VERIFYING,
    Stage.PUBLISHING,
]


class Builds:
    """Runs jobs against one store and remembers the events of the last."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = EngineStore(root / "store")
        self.events: list[ChildEvent] = []

    def job(self, path: Path, **fields) -> BuildJob:
        kind = "gguf" if path.suffix == ".gguf" else "huggingface"
        places = {"store": str(self.root / "store"), "cache": str(self.root / "cache")}
        return BuildJob(engine_id="tiny", source=SourceSpec(kind=kind, path=str(path)), **places, **fields)

    def run(self, path: Path, **fields) -> ResultEvent:
        self.events = []
        return run_build(self.job(path, **fields), self.events.append)

    def manifest(self, version: int = 1) -> Manifest:
        return self.store.get("tiny", version)

    def nothing_published(self) -> bool:
        return self.store.version_numbers("tiny") == [] and not list((self.root / "store").glob("staging/*"))


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_of_each_family_is_published(builds, make_checkpoint, family, dtype):
    directory = make_checkpoint(family, dtype, **FAMILIES[family])
    result = builds.run(directory)
    assert result == ResultEvent("tiny", 1, reused=False)
    assert [event.stage for event in builds.events if isinstance(event, StageEvent)] == STAGES
    manifest = builds.manifest()
    assert manifest.targets[0].dtype == dtype
    assert manifest.targets[0].verified == "executed"
    assert manifest.verify_report.status == "passed"
    assert manifest.verify_report.max_logit_diff <= manifest.verify_report.tolerance
    if dtype == "float32":
        assert manifest.verify_report.greedy_equal == manifest.verify_report.tokens == 64
    assert builds.store.verify("tiny", 1).files == len(manifest.files)


def test_the_manifest_says_what_a_server_needs(builds, make_checkpoint):
    directory = make_checkpoint("mistral", "bfloat16", sliding_window=7)
    build = BuildConfig(max_batch_size=8, max_num_tokens=64, max_seq_len=100, tokens_per_block=16)
    builds.run(directory, build=build, labels={"team": "a"})
    manifest = builds.manifest()
    assert manifest.architecture == "MistralForCausalLM"
    assert manifest.vocab_size == 101
    assert (manifest.eos_token_ids, manifest.bos_token_id, manifest.pad_token_id) == ((2,), 1, 0)
    assert (manifest.limits.max_batch_size, manifest.limits.max_num_tokens, manifest.limits.max_seq_len) == (8, 64, 100)
    (group,) = manifest.cache_groups
    assert (group.layers, group.num_kv_heads, group.head_dim, group.block_size) == ((0, 1, 2), 3, 8, 16)
    assert manifest.features == ("sliding_window", "tokenizer")
    assert manifest.labels == {"team": "a"}
    assert manifest.source.digest.startswith("sha256:")
    facts = manifest.build_facts
    assert {"torch", "transformers", "safetensors", "enginehouse", "python", "os", "cpus"} <= facts.keys()
    stages = ("converting", "capturing", "compiling", "verifying")
    assert all(float(facts[f"{stage}_seconds"]) >= 0 for stage in stages)
    assert 50 << 20 < int(facts["peak_memory_bytes"]) < 8 << 30
    assert platform.node() not in str(msgspec.json.encode(facts))


def test_the_version_holds_the_documented_files(builds, make_checkpoint):
    builds.run(make_checkpoint("llama", "bfloat16"))
    directory = builds.store.version_path("tiny", 1)
    graph = decode((directory / "graph.json").read_bytes())
    weights = load_file(directory / "weights" / "rank0.safetensors")
    assert weights.keys() == graph.weights.keys()
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert AutoTokenizer.from_pretrained(directory / "tokenizer").encode("a") == [67]
    config = msgspec.json.decode((directory / "config.json").read_bytes())
    assert config["pretrained_config"]["model_type"] == "llama"
    assert config["build_config"]["tokens_per_block"] == 32


def test_the_same_build_again_finds_the_version(builds, make_checkpoint):
    directory = make_checkpoint()
    builds.run(directory)
    result = builds.run(directory)
    assert result == ResultEvent("tiny", 1, reused=True)
    assert [event.stage for event in builds.events if isinstance(event, StageEvent)] == [Stage.FETCHING]
    assert builds.events[-1] == KeyEvent(builds.manifest().build_key, existing=1)


def test_force_builds_the_same_bytes_again(builds, make_checkpoint):
    directory = make_checkpoint()
    builds.run(directory)
    assert builds.run(directory, force=True) == ResultEvent("tiny", 2, reused=False)
    assert builds.manifest(1).files == builds.manifest(2).files


@pytest.mark.parametrize(
    "changed",
    [
        {"build": BuildConfig(dtype="bfloat16")},
        {"build": BuildConfig(max_batch_size=3)},
        {"build": BuildConfig(max_seq_len=100)},
        {"build": BuildConfig(tokens_per_block=16)},
        {"weights": "dummy"},
    ],
)
def test_whatever_changes_the_bytes_changes_the_key(builds, make_checkpoint, changed):
    directory = make_checkpoint()
    builds.run(directory, verify="off")
    assert builds.run(directory, verify="off", **changed).version == 2


def test_whatever_does_not_change_the_bytes_keeps_the_key(builds, make_checkpoint):
    directory = make_checkpoint()
    builds.run(directory, verify="off")
    assert builds.run(directory, verify="off", build=BuildConfig(dtype="float32"), labels={"a": "b"}).reused
    assert builds.run(directory, verify="off", build=BuildConfig(max_seq_len=128)).reused
    os.utime(directory / "model.safetensors")
    assert builds.run(directory, verify="off").reused


def test_a_changed_weight_is_another_engine(builds, make_checkpoint):
    directory = make_checkpoint()
    builds.run(directory, verify="off")
    weights = directory / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-4] ^= 1
    weights.write_bytes(data)
    assert builds.run(directory, verify="off").version == 2


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_gives_the_weights_of_its_model(builds, write_gguf, make_model, family, tmp_path):
    model = make_model(family)
    model.save_pretrained(tmp_path / "hf")
    builds.run(write_gguf(model, family))
    builds.run(tmp_path / "hf", verify="off")
    one, two = (
        load_file(builds.store.version_path("tiny", version) / "weights" / "rank0.safetensors") for version in (1, 2)
    )
    assert all(torch.equal(one[name], two[name]) for name in two)
    assert builds.manifest(1).source.kind == "gguf"
    assert builds.manifest(1).eos_token_ids == (2,)


def test_a_dummy_seed_decides_the_weights_and_is_in_the_key(builds, make_checkpoint):
    directory = make_checkpoint()
    (directory / "model.safetensors").unlink()
    for seed in (0, 7, -7):
        assert builds.run(directory, weights="dummy", dummy_seed=seed).reused is False
    assert builds.run(directory, weights="dummy", dummy_seed=7) == ResultEvent("tiny", 2, reused=True)
    one, two, three = (
        load_file(builds.store.version_path("tiny", version) / "weights" / "rank0.safetensors") for version in (1, 2, 3)
    )
    assert not torch.equal(one["embed.weight"], two["embed.weight"])
    assert not torch.equal(two["embed.weight"], three["embed.weight"])


def test_dummy_weights_need_no_weights(builds, make_checkpoint):
    directory = make_checkpoint()
    (directory / "model.safetensors").unlink()
    builds.run(directory, weights="dummy")
    manifest = builds.manifest()
    assert manifest.source.kind == "dummy"
    assert manifest.verify_report.status == "off"
    assert manifest.targets[0].verified == "not_run"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_weight_fails_verification_and_publishes_nothing(builds, make_checkpoint, monkeypatch, dtype):
    """The converter is made to write one weight wrongly: a head's rows of q scaled."""
    from builder_service.build import convert as module

    cast = module._cast

    def wrong(name: str, tensor: torch.Tensor, to: str) -> torch.Tensor:
        factor = 3 if name == "model.layers.1.self_attn.q_proj.weight" else 1
        return cast(name, tensor * factor, to)

    monkeypatch.setattr(module, "_cast", wrong)
    with pytest.raises(FailedPrecondition, match="Nothing was published") as caught:
        builds.run(make_checkpoint("llama", dtype))
    assert caught.value.reason == "VERIFY_FAILED"
    assert float(caught.value.metadata["max_logit_diff"]) > float(caught.value.metadata["tolerance"])
    assert builds.nothing_published()


def test_every_long_stage_reports_progress_in_small_steps(builds, make_checkpoint, monkeypatch):
    """Small steps of a tiny model are seconds of a large one: blocks of tensors, operators, layers, pieces of files."""
    monkeypatch.setattr("builder_service.sources.base.BLOCK_BYTES", 2000)
    monkeypatch.setattr("engine_store.digests.PIECE", 10_000)
    builds.run(make_checkpoint())
    stage, steps = Stage.QUEUED, {}
    for event in builds.events:
        stage = event.stage if isinstance(event, StageEvent) else stage
        if isinstance(event, ProgressEvent):
            steps.setdefault(stage, []).append(event.done / event.total)
    assert steps.keys() >= {Stage.FETCHING, Stage.CONVERTING, Stage.VERIFYING, Stage.PUBLISHING}
    for stage, fractions in steps.items():
        assert len(fractions) >= 10, stage
        assert fractions == sorted(fractions), stage
        assert fractions[-1] == 1.0, stage
        assert max(b - a for a, b in itertools.pairwise([0.0, *fractions])) < 0.4, stage


def test_progress_counts_bytes_up_to_the_whole(builds, make_checkpoint):
    builds.run(make_checkpoint())
    for unit in ("bytes", ""):
        steps = [event for event in builds.events if isinstance(event, ProgressEvent) and event.unit == unit]
        assert steps[-1].done == steps[-1].total > 0


def test_a_checkpoint_without_a_tokenizer_is_told(builds, make_checkpoint):
    directory = make_checkpoint()
    for file in directory.glob("tokenizer*"):
        file.unlink()
    builds.run(directory)
    assert any("no tokenizer" in event.text for event in builds.events if isinstance(event, LogEvent))


def test_stray_files_are_logged(builds, make_checkpoint):
    directory = make_checkpoint()
    (directory / "training_args.bin").write_bytes(b"x")
    builds.run(directory, verify="off")
    assert any(isinstance(event, LogEvent) and "training_args.bin" in event.text for event in builds.events)


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (BuildConfig(max_batch_size=0), "max_batch_size"),
        (BuildConfig(max_num_tokens=0), "max_num_tokens"),
        (BuildConfig(max_seq_len=129), "max_seq_len"),
        (BuildConfig(max_seq_len=1), "max_seq_len"),
        (BuildConfig(tokens_per_block=24), "tokens_per_block"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_bounds(builds, make_checkpoint, build, field):
    with pytest.raises(InvalidArgument, match=field) as caught:
        builds.run(make_checkpoint(), build=build)
    assert caught.value.metadata["field"] == field
    assert builds.nothing_published()


@pytest.mark.parametrize("targets", [("tensorrt",), ("torch", "tensorrt-rtx")])
def test_a_target_that_is_not_built_is_refused_by_name(builds, make_checkpoint, targets):
    with pytest.raises(Unimplemented, match=targets[-1]):
        builds.run(make_checkpoint(), targets=targets)


def test_an_unsupported_architecture_is_refused_by_name(builds, make_checkpoint, edit):
    directory = make_checkpoint()
    edit(directory / "config.json", lambda config: config.update(architectures=["MambaForCausalLM"]))
    with pytest.raises(Unimplemented, match="MambaForCausalLM"):
        builds.run(directory)


def test_a_full_store_is_refused_before_it_is_written(builds, make_checkpoint, monkeypatch):
    import shutil

    usage = shutil.disk_usage(builds.root)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ResourceExhausted, match="1000 free"):
        builds.run(make_checkpoint())
    assert builds.nothing_published()


def test_an_id_outside_the_vocabulary_is_dropped(builds, make_checkpoint, edit):
    directory = make_checkpoint()
    edit(directory / "generation_config.json", lambda config: config.update(eos_token_id=[2, 101, -1, 5]))
    builds.run(directory, verify="off")
    assert builds.manifest().eos_token_ids == (2, 5)


@pytest.mark.parametrize("alias", ["latest", "Not An Id"])
def test_an_alias_that_cannot_be_set_is_refused_before_the_work(builds, make_checkpoint, alias):
    with pytest.raises(InvalidArgument):
        builds.run(make_checkpoint(), verify="off", alias=alias)
    assert builds.events == []
    assert builds.nothing_published()


def test_a_version_that_was_not_verified_is_no_answer_to_a_build_that_shall_be(builds, make_checkpoint):
    directory = make_checkpoint()
    assert builds.run(directory, verify="off").version == 1
    assert builds.run(directory, verify="off") == ResultEvent("tiny", 1, reused=True)
    assert builds.run(directory) == ResultEvent("tiny", 2, reused=False)
    assert builds.manifest(2).verify_report.status == "passed"
    assert builds.run(directory) == ResultEvent("tiny", 2, reused=True)
    assert builds.run(directory, verify="off") == ResultEvent("tiny", 2, reused=True)


def test_a_checkpoint_that_changes_while_it_is_built_is_not_published(builds, make_checkpoint, monkeypatch):
    def change_and_convert(*args):
        weights = checkpoint / "model.safetensors"
        data = weights.read_bytes()
        weights.write_bytes(data[:-4] + bytes(4))
        convert(*args)

    checkpoint, convert = make_checkpoint(), pipeline.convert
    monkeypatch.setattr(pipeline, "convert", change_and_convert)
    with pytest.raises(FailedPrecondition) as caught:
        builds.run(checkpoint)
    assert caught.value.reason == "CHECKPOINT_CHANGED"
    assert builds.nothing_published()


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_version_without_its_files_does_not_answer_for_its_key(builds, make_checkpoint, damage):
    checkpoint = make_checkpoint()
    builds.run(checkpoint, verify="off")
    weights = builds.root / "store/engines/tiny/versions/1/weights/rank0.safetensors"
    if damage == "missing":
        weights.unlink()
    else:
        data = weights.read_bytes()
        weights.unlink()
        weights.write_bytes(data[:-1])
    assert builds.run(checkpoint, verify="off") == ResultEvent("tiny", 2, reused=False)
    builds.store.verify("tiny", 2)
    assert builds.run(checkpoint, verify="off") == ResultEvent("tiny", 2, reused=True)


def test_a_version_that_a_build_found_counts_as_used(builds, make_checkpoint):
    checkpoint = make_checkpoint()
    builds.run(checkpoint, verify="off")
    assert builds.store.last_use("tiny", 1) is None
    builds.run(checkpoint, verify="off")
    assert builds.store.last_use("tiny", 1) is not None
