"""Tiny random engines, written by hand over the graph format, and random steps over them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine_ops.graph import OPSET, Graph, Node, Pool, Tensor, encode
from engine_ops.opset import Attrs, Linear, NoAttrs, Norm, PagedAttention, QkvRopeKv, Rope
from engine_store.manifest import CacheGroup, Limits, Manifest, Source, Target
from inference_service.runners.base import BlockCopy, Step

import msgspec  # isort: skip


@dataclass(frozen=True)
class Shape:
    """A decoder's shape. `rotary` dimensions of the head are rotated (None: all)."""

    layers: int = 2
    hidden: int = 48
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 80
    vocab: int = 97
    bias: bool = False
    qk_norm: bool = False
    tied: bool = True
    window: int | None = None
    block_size: int = 16
    max_seq_len: int = 256
    dtype: str = "float32"
    rotary: int | None = None


class Builder:
    """Appends nodes over named values."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.nodes: list[Node] = []
        self.values: dict[str, Tensor] = {}
        self.weights: dict[str, Tensor] = {}

    def weight(self, name: str, *dims: int) -> str:
        self.weights[name] = Tensor(self.shape.dtype, dims)
        return name

    def node(self, op: str, name: str, attrs: Attrs, outputs: dict[str, tuple[Any, ...]], **inputs: str | None) -> None:
        given = {key: value for key, value in inputs.items() if value is not None}
        self.nodes.append(Node(op, name, given, tuple(outputs), msgspec.to_builtins(attrs)))
        for value, dims in outputs.items():
            dtype = "float32" if attrs == Linear(out_dtype="float32") else self.shape.dtype
            self.values[value] = Tensor(dtype, dims)

    def linear(self, name: str, x: str, out: str, k: int, n: int) -> None:
        bias = self.weight(f"{name}.bias", n) if self.shape.bias else None
        self.node("linear", name, Linear(), {out: ("T", n)}, x=x, weight=self.weight(f"{name}.weight", n, k), bias=bias)


def build_graph(s: Shape) -> Graph:
    b = Builder(s)
    rope = Rope(kind="default", theta=10000.0, dim=s.rotary or s.head_dim, original_max_position=s.max_seq_len)
    dims = {"num_heads": s.heads, "num_kv_heads": s.kv_heads, "head_dim": s.head_dim}
    b.node(
        "embedding",
        "embed",
        NoAttrs(),
        {"h0": ("T", s.hidden)},
        token_ids="token_ids",
        weight=b.weight("embed.weight", s.vocab, s.hidden),
    )
    residual, x = "h0", ""
    for i in range(s.layers):
        p, y = f"layers.{i}", f"n{i}"
        norm = b.weight(f"{p}.input_norm.weight", s.hidden)
        if i == 0:
            b.node("rms_norm", p, Norm(eps=1e-5), {y: ("T", s.hidden)}, x=residual, weight=norm)
        else:
            b.node(
                "add_rms_norm",
                p,
                Norm(eps=1e-5),
                {y: ("T", s.hidden), f"r{i}": ("T", s.hidden)},
                x=x,
                residual=residual,
                weight=norm,
            )
            residual = f"r{i}"
        width = (s.heads + 2 * s.kv_heads) * s.head_dim
        b.linear(f"{p}.attn.qkv", y, f"qkv{i}", s.hidden, width)
        norms = {n: b.weight(f"{p}.attn.{n}.weight", s.head_dim) for n in ("q_norm", "k_norm")} if s.qk_norm else {}
        tables = {"query_start": "query_start", "block_tables": "block_tables.0"}
        tables |= {"k_pool": f"k_pool.{i}", "v_pool": f"v_pool.{i}"}
        attrs = QkvRopeKv(**dims, rope=rope, norm_eps=1e-6 if s.qk_norm else 0.0)
        b.node(
            "qkv_rope_kv",
            p,
            attrs,
            {f"q{i}": ("T", s.heads, s.head_dim)},
            qkv=f"qkv{i}",
            positions="positions",
            **tables,
            **norms,
        )
        attention = PagedAttention(**dims, scale=s.head_dim**-0.5, window=s.window)
        b.node(
            "paged_attention",
            p,
            attention,
            {f"a{i}": ("T", s.heads * s.head_dim)},
            q=f"q{i}",
            seq_lens="seq_lens",
            **tables,
        )
        b.linear(f"{p}.attn.o", f"a{i}", f"o{i}", s.heads * s.head_dim, s.hidden)
        norm = b.weight(f"{p}.post_norm.weight", s.hidden)
        b.node(
            "add_rms_norm",
            p,
            Norm(eps=1e-5),
            {f"m{i}": ("T", s.hidden), f"s{i}": ("T", s.hidden)},
            x=f"o{i}",
            residual=residual,
            weight=norm,
        )
        b.linear(f"{p}.mlp.gate_up", f"m{i}", f"g{i}", s.hidden, 2 * s.ffn)
        b.node("silu_and_mul", p, NoAttrs(), {f"u{i}": ("T", s.ffn)}, x=f"g{i}")
        b.linear(f"{p}.mlp.down", f"u{i}", f"d{i}", s.ffn, s.hidden)
        residual, x = f"s{i}", f"d{i}"
    b.node("add", "add", NoAttrs(), {"sum": ("T", s.hidden)}, x=x, y=residual)
    b.node("select_rows", "rows", NoAttrs(), {"sel": ("R", s.hidden)}, x="sum", rows="logits_rows")
    b.node(
        "rms_norm", "norm", Norm(eps=1e-5), {"last": ("R", s.hidden)}, x="sel", weight=b.weight("norm.weight", s.hidden)
    )
    head = "embed.weight" if s.tied else b.weight("head.weight", s.vocab, s.hidden)
    b.node("linear", "head", Linear(out_dtype="float32"), {"logits": ("R", s.vocab)}, x="last", weight=head)
    i32 = "int32"
    inputs = {
        "token_ids": Tensor(i32, ("T",)),
        "positions": Tensor(i32, ("T",)),
        "query_start": Tensor(i32, ("Q",)),
        "seq_lens": Tensor(i32, ("B",)),
        "block_tables.0": Tensor(i32, ("B", "M")),
        "logits_rows": Tensor(i32, ("R",)),
    }
    pool = Tensor(s.dtype, ("N", s.kv_heads, s.block_size, s.head_dim))
    pools = {f"{kind}_pool.{i}": Pool(0, i, kind, pool) for i in range(s.layers) for kind in ("k", "v")}
    return Graph(
        "enginehouse.graph", OPSET, "tiny", inputs, pools, b.weights, tuple(b.nodes), b.values, {"logits": "logits"}
    )


def random_weights(graph: Graph, seed: int = 0, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    result = {}
    for name, tensor in graph.weights.items():
        value = torch.randn(tensor.shape, generator=generator)
        value = value * scale * tensor.shape[1] ** -0.5 if len(tensor.shape) == 2 else 1 + 0.1 * value
        result[name] = value.to(getattr(torch, tensor.dtype))
    return result


def write_version(directory: Path, graph: Graph, weights: dict[str, torch.Tensor], s: Shape) -> Manifest:
    (directory / "weights").mkdir(parents=True)
    (directory / "graph.json").write_bytes(encode(graph))
    save_file(weights, directory / "weights/rank0.safetensors")
    group = CacheGroup(
        kind="window" if s.window else "paged",
        layers=tuple(range(s.layers)),
        num_kv_heads=s.kv_heads,
        head_dim=s.head_dim,
        dtype=s.dtype,
        block_size=s.block_size,
        window=s.window,
    )
    return Manifest(
        schema=1,
        name="tiny",
        version=1,
        build_key="0",
        create_time="2026-01-01T00:00:00Z",
        architecture="Tiny",
        opset=OPSET,
        vocab_size=s.vocab,
        eos_token_ids=(0,),
        source=Source(kind="dummy", location="tiny"),
        targets=(Target(form="torch", dtype=s.dtype, build_key="0"),),
        limits=Limits(max_batch_size=32, max_num_tokens=512, max_seq_len=s.max_seq_len),
        cache_groups=(group,),
    )


class TinyEngine:
    """A written version, and its graph and weights for the reference."""

    Shape = Shape
    replace = staticmethod(replace)

    def __init__(self, directory: Path, shape: Shape, seed: int = 0, scale: float = 1.0) -> None:
        self.shape = shape
        self.graph = build_graph(shape)
        self.weights = random_weights(self.graph, seed, scale)
        self.dir = directory
        self.manifest = write_version(directory, self.graph, self.weights, shape)

    def reference_pools(self, num_blocks: int) -> dict[str, torch.Tensor]:
        s = self.shape
        shape = (num_blocks, s.kv_heads, s.block_size, s.head_dim)
        return {name: torch.zeros(shape, dtype=getattr(torch, s.dtype)) for name in self.graph.pools}


def make_step(
    chunks: list[tuple[np.ndarray, int]],
    tables: np.ndarray,
    rows: list[int] | None = None,
    copies: tuple[BlockCopy, ...] = (),
) -> Step:
    """A step of (new tokens, position of the first) for each sequence. rows None: each sequence's last token."""
    lens = np.array([len(tokens) for tokens, _ in chunks])
    query_start = np.concatenate([[0], lens.cumsum()]).astype(np.int32)
    positions = np.concatenate([np.arange(start, start + len(tokens)) for tokens, start in chunks]).astype(np.int32)
    return Step(
        token_ids=np.concatenate([tokens for tokens, _ in chunks]).astype(np.int32),
        positions=positions,
        query_start=query_start,
        seq_lens=np.array([start + len(tokens) for tokens, start in chunks], np.int32),
        block_tables=(tables.astype(np.int32),),
        logits_rows=(query_start[1:] - 1 if rows is None else np.array(rows)).astype(np.int32),
        copies=copies,
    )


def step_inputs(step: Step) -> dict[str, torch.Tensor]:
    names = ("token_ids", "positions", "query_start", "seq_lens", "logits_rows")
    inputs = {name: torch.from_numpy(getattr(step, name)) for name in names}
    return {**inputs, "block_tables.0": torch.from_numpy(step.block_tables[0])}


@pytest.fixture
def tiny_engine(tmp_path):
    """tiny_engine(shape, ...) -> TinyEngine in a fresh directory."""
    return lambda shape=Shape(), **kwargs: TinyEngine(tmp_path / f"v{len(list(tmp_path.iterdir()))}", shape, **kwargs)


@pytest.fixture
def steps():
    """Namespace of helpers over steps."""

    class Steps:
        make = staticmethod(make_step)
        inputs = staticmethod(step_inputs)

    return Steps


@pytest.fixture
def shape():
    return Shape
