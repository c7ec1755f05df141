"""What reads files that others wrote: each kind of file, a valid one, and the real code that opens it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from builder_service.build.convert import convert
from builder_service.build.pipeline import run_build
from builder_service.build.validate import run_check
from builder_service.job import BuildConfig, BuildJob, SourceSpec
from builder_service.models import read_spec, weight_parts
from builder_service.sources import open_checkpoint
from engine_ops.graph import decode
from engine_store import EngineStore
from enginehouse.errors import EnginehouseError
from inference_service.frontend.fit import check_graph, check_manifest
from inference_service.text.tokenizer import Tokenizer
from tests.builder_service.conftest import make_tokenizer, random_model
from tests.builder_service.gguf_files import numbered_tokens, write_gguf_file

from .damage import Damage, damaged_bytes, damaged_gguf, damaged_json, damaged_safetensors

SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
ENGINE = "tiny"
VERSION = f"engines/{ENGINE}/versions/1"


class Kind(NamedTuple):
    """`tree` holds a valid example, and `file` (a pattern below it) is what is damaged; `read` opens the tree."""

    tree: str
    file: str
    damage: Damage
    read: Callable[[Path], None]


def make_examples(home: Path) -> None:
    """A checkpoint in one file, one in shards, a GGUF file, and a store with an engine that has an alias."""
    torch.set_num_threads(1)
    model = random_model("llama", **SMALL)
    for name, most in (("single", "5GB"), ("shards", "4KB")):
        model.save_pretrained(home / name, max_shard_size=most)
        make_tokenizer(home / name)
    (home / "gguf").mkdir()
    write_gguf_file(model, home / "gguf" / "tiny.gguf", tokens=numbered_tokens(model))
    job = _job(SourceSpec(kind="huggingface", path=str(home / "single")), home, home / "store")
    run_build(job, lambda event: None)
    store = EngineStore(home / "store")
    for _ in range(2):
        store.set_alias(ENGINE, "stable", 1)


def _job(source: SourceSpec, folder: Path, store: Path) -> BuildJob:
    return BuildJob(
        engine_id=ENGINE,
        store=str(store),
        cache=str(folder / "cache"),
        source=source,
        build=BuildConfig(dtype="float32"),
        verify="off",
        offline=True,
    )


def read_directory(tree: Path) -> None:
    """As a build would: checked, then converted, its tokenizer too."""
    _read_checkpoint(SourceSpec(kind="huggingface", path=str(tree)), tree.parent)


def read_gguf(tree: Path) -> None:
    """The same for a GGUF file."""
    _read_checkpoint(SourceSpec(kind="gguf", path=str(tree / "tiny.gguf")), tree.parent)


def _read_checkpoint(source: SourceSpec, folder: Path) -> None:
    job = _job(source, folder, folder / "none")
    run_check(_validating(job), lambda event: None)
    checkpoint = open_checkpoint(source, folder / "cache", offline=True)
    try:
        written = folder / "written"
        written.mkdir()
        checkpoint.write_tokenizer(written)
        parts = weight_parts(read_spec(checkpoint.config))
        convert(checkpoint, parts, "float32", folder / "rank0.safetensors", lambda done, total: None)
    finally:
        checkpoint.close()
    _use_tokenizer(written)


def _validating(job: BuildJob) -> BuildJob:
    return msgspec.structs.replace(job, validate_only=True)


def _use_tokenizer(folder: Path) -> None:
    if not (folder / "tokenizer.json").is_file():
        return
    tokenizer = Tokenizer(folder)
    ids = tokenizer.encode("the quick brown fox")
    tokenizer.decode(ids)
    if tokenizer.has_chat_template:
        tokenizer.render_chat([{"role": "user", "content": "hello"}])


def read_store(tree: Path) -> None:
    """Everything that the daemons ask a store; what they refuse does not keep the rest from being asked."""
    store = EngineStore(tree)
    key = EngineStore(EXAMPLES / "store").get(ENGINE, 1).build_key
    asked: list[Callable[[], object]] = [
        store.list_engines,
        lambda: store.list_versions(ENGINE),
        lambda: store.get(ENGINE, 1),
        lambda: store.resolve(ENGINE, "stable"),
        lambda: store.find(ENGINE, key),
        lambda: store.list_aliases(ENGINE),
        lambda: store.inspect(ENGINE, 1),
        lambda: store.verify(ENGINE, 1),
        lambda: store.deleted_versions(ENGINE),
        store.usage,
        store.collect,
        store.recover,
        lambda: store.set_alias(ENGINE, "stable", 1),
        lambda: _fit(store),
        lambda: store.delete_alias(ENGINE, "stable"),
        lambda: store.delete_version(ENGINE, 1),
    ]
    refused: EnginehouseError | None = None
    for ask in asked:
        try:
            ask()
        except EnginehouseError as error:
            refused = refused or error
    if refused is not None:
        raise refused


def _fit(store: EngineStore) -> None:
    """What the inference server looks at before it reads weights."""
    manifest = store.get(ENGINE, 1)
    check_manifest(manifest)
    folder = store.version_path(ENGINE, 1)
    check_graph(decode((folder / "graph.json").read_bytes()), manifest)
    _use_tokenizer(folder / "tokenizer")


KINDS = {
    "gguf": Kind("gguf", "tiny.gguf", damaged_gguf, read_gguf),
    "safetensors": Kind("single", "model.safetensors", damaged_safetensors, read_directory),
    "shard": Kind("shards", "model-*.safetensors", damaged_safetensors, read_directory),
    "index": Kind("shards", "model.safetensors.index.json", damaged_json, read_directory),
    "config": Kind("single", "config.json", damaged_json, read_directory),
    "tokenizer": Kind("single", "*tokenizer*.json", damaged_json, read_directory),
    "generation": Kind("single", "generation_config.json", damaged_json, read_directory),
    "manifest": Kind("store", f"{VERSION}/engine.json", damaged_json, read_store),
    "graph": Kind("store", f"{VERSION}/graph.json", damaged_json, read_store),
    "engine tokenizer": Kind("store", f"{VERSION}/tokenizer/*.json", damaged_json, read_store),
    "key record": Kind("store", f"engines/{ENGINE}/keys/*/*", damaged_json, read_store),
    "alias record": Kind("store", f"engines/{ENGINE}/aliases/*/*", damaged_json, read_store),
    "claim": Kind("store", f"engines/{ENGINE}/claims/1/*", damaged_bytes, read_store),
}
WEIGHTS = {"gguf": 6, "safetensors": 5, "config": 3, "manifest": 2}
"""Inputs of a kind for one of the others."""
EXAMPLES = Path(os.environ.get("FUZZ_EXAMPLES", "."))


def copy_example(kind: Kind, folder: Path) -> Path:
    """A copy of the kind's example that may be changed: files that are replaced are never written in place."""
    tree = folder / kind.tree
    shutil.copytree(EXAMPLES / kind.tree, tree, copy_function=_link, symlinks=True)
    return tree


def _link(source: str, destination: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.link(source, destination)
