"""A graph as a native program: one call runs all operators of a step, on all threads.

Activations are float32. Weights and pools are float32 or bfloat16; products are accumulated in float32.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64, c_void_p
from typing import ClassVar

import numpy as np
import torch

from engine_ops.opset import Norm, PagedAttention, QkvRopeKv
from inference_service.runners.base import Ints, Step
from inference_service.runners.engine import Engine
from inference_service.runners.huge_pages import huge_zeros
from inference_service.runners.native_build import native_library
from inference_service.runners.plan import Instruction, Plan, columns, make_plan
from inference_service.runners.weights import DTYPES

_KINDS = (
    "embedding",
    "rms_norm",
    "add_rms_norm",
    "linear",
    "qkv_rope_kv",
    "paged_attention",
    "silu_and_mul",
    "add",
    "select_rows",
)
_TYPES = {torch.float32: 0, torch.bfloat16: 1}
_MAX_BLOCK, _MAX_HEAD_DIM, _MAX_GROUP = 128, 1024, 64


class _Op(ctypes.Structure):
    """`Op` of native/program.hpp."""

    _fields_ = (
        *((name, c_int32) for name in ("kind", "rows", "weight_type", "pool_type")),
        *((name, c_void_p) for name in ("x", "y", "out", "out2", "weight", "bias")),
        *((name, c_int64) for name in ("n", "k")),
        *((name, c_void_p) for name in ("q_norm", "k_norm", "cos", "sin", "k_pool", "v_pool")),
        *((name, c_int32) for name in ("heads", "kv_heads", "head_dim", "rotary", "block_size", "window", "group")),
        *((name, c_float) for name in ("eps", "scale")),
    )


class _Step(ctypes.Structure):
    """`Step` of native/program.hpp."""

    _fields_ = (
        *((name, c_int64) for name in ("tokens", "sequences", "logits_rows")),
        *((name, c_void_p) for name in ("token_ids", "positions", "query_start", "seq_lens", "logits", "row_of_token")),
        *((name, c_void_p) for name in ("block_tables", "table_width")),
    )


def native_for(engine: Engine) -> ctypes.CDLL | None:
    """The kernels, where they run this engine; None: use torch operators."""
    fits = engine.dtype in _TYPES and all(size % 16 == 0 and size <= _MAX_BLOCK for size in engine.block_sizes)
    for node in engine.graph.nodes:
        fits = fits and node.op in _KINDS
        attrs = node.typed_attrs()
        if isinstance(attrs, PagedAttention):
            fits = fits and attrs.head_dim % 16 == 0 and attrs.head_dim <= _MAX_HEAD_DIM
            fits = fits and attrs.num_heads <= _MAX_GROUP * attrs.num_kv_heads
    return native_library() if fits else None


class NativeProgram:
    """Owns the packed weights and the activations. Not thread-safe."""

    def __init__(self, engine: Engine, library: ctypes.CDLL) -> None:
        assert library.eh_op_size() == ctypes.sizeof(_Op), "native/program.hpp and _Op differ"
        self._library = library
        self._engine = engine
        self._plan = make_plan(engine.graph)
        self._keep: list[object] = []
        self._weights = _PackedWeights(engine, library, self._plan)
        self._ops = (_Op * len(self._plan.instructions))()
        for op, instruction in zip(self._ops, self._plan.instructions, strict=True):
            self._fill(op, instruction)
        self._capacity = {"T": 0, "R": 0}
        self._slots: list[torch.Tensor] = []

    def run(self, step: Step) -> torch.Tensor:
        self._check(step)
        self._reserve({"T": step.num_tokens, "R": len(step.logits_rows)})
        record, _keep = _step_record(step)
        self._library.eh_run(self._ops, len(self._ops), ctypes.byref(record), torch.get_num_threads())
        vocab_size = self._plan.slots[self._plan.logits].columns
        return self._slots[self._plan.logits][: len(step.logits_rows) * vocab_size].view(-1, vocab_size)

    def _check(self, step: Step) -> None:
        """Native code would read and write outside its arrays."""
        bounds = [(step.positions, self._engine.max_positions), (step.token_ids, self._vocab)]
        bounds += zip(step.block_tables, self._engine.num_blocks, strict=True)
        for values, bound in bounds:
            assert 0 <= values.min() <= values.max() < bound, f"{values.min()} to {values.max()}, below {bound} allowed"

    def _reserve(self, rows: dict[str, int]) -> None:
        """Makes room for a step, and points the operators at it."""
        if all(self._capacity[symbol] >= count for symbol, count in rows.items()):
            return
        for symbol, count in rows.items():
            self._capacity[symbol] = max(self._capacity[symbol], 1 << (count - 1).bit_length())
        self._slots = [torch.empty(self._capacity[str(s.rows)] * s.columns) for s in self._plan.slots]
        for op, instruction in zip(self._ops, self._plan.instructions, strict=True):
            outputs = [self._slots[slot].data_ptr() for slot in instruction.outputs]
            op.out, op.out2 = (*outputs, None)[:2]
            for field, parameters in (("x", ("x", "qkv", "q")), ("y", ("y", "residual"))):
                found = [instruction.slot(p) for p in parameters if p in instruction.inputs]
                setattr(op, field, self._slots[found[0]].data_ptr() if found else None)

    def _pointer(self, tensor: torch.Tensor) -> int:
        """Address of a tensor that the program keeps alive."""
        self._keep.append(tensor)
        return tensor.data_ptr()

    def _float_weight(self, instruction: Instruction, parameter: str) -> int | None:
        name = instruction.name(parameter)
        return self._pointer(self._engine.stored.read(name).float()) if name else None

    def _fill(self, op: _Op, instruction: Instruction) -> None:
        """Everything of an operator but its activations."""
        output = instruction.node.outputs[0]
        op.kind = _KINDS.index(instruction.node.op)
        op.rows = 0 if self._engine.graph.values[output].shape[0] == "T" else 1
        op.n = columns(self._engine.graph, output)
        fill = self._FILL.get(instruction.node.op)
        if fill:
            fill(self, op, instruction)

    def _fill_embedding(self, op: _Op, instruction: Instruction) -> None:
        name, stored = instruction.inputs["weight"].name, self._engine.stored
        weight = (
            stored.map(name) if DTYPES[self._engine.graph.weights[name].dtype] in _TYPES else stored.read(name).float()
        )
        self._vocab = len(weight)
        op.weight, op.weight_type = self._pointer(weight), _TYPES[weight.dtype]

    def _fill_norm(self, op: _Op, instruction: Instruction) -> None:
        op.weight = self._float_weight(instruction, "weight")
        op.eps = self._engine.attrs(instruction, Norm).eps

    def _fill_linear(self, op: _Op, instruction: Instruction) -> None:
        name = instruction.inputs["weight"].name
        op.weight, op.weight_type = self._weights.address[name], _TYPES[self._engine.dtype]
        op.k = self._engine.graph.weights[name].shape[1]
        op.bias = self._float_weight(instruction, "bias")

    def _fill_heads(self, op: _Op, instruction: Instruction, attrs: QkvRopeKv | PagedAttention) -> None:
        op.heads, op.kv_heads, op.head_dim = attrs.num_heads, attrs.num_kv_heads, attrs.head_dim
        k_pool, v_pool = (self._engine.pool(instruction, name) for name in ("k_pool", "v_pool"))
        op.k_pool, op.v_pool = self._pointer(k_pool), self._pointer(v_pool)
        op.pool_type, op.block_size = _TYPES[k_pool.dtype], k_pool.shape[2]
        op.group = self._engine.group(instruction)

    def _fill_qkv(self, op: _Op, instruction: Instruction) -> None:
        attrs = self._engine.attrs(instruction, QkvRopeKv)
        self._fill_heads(op, instruction, attrs)
        op.rotary, op.eps = attrs.rope.dim, attrs.norm_eps
        op.q_norm, op.k_norm = (self._float_weight(instruction, name) for name in ("q_norm", "k_norm"))
        op.cos, op.sin = (self._pointer(t) for t in self._engine.rope(attrs.rope))

    def _fill_attention(self, op: _Op, instruction: Instruction) -> None:
        attrs = self._engine.attrs(instruction, PagedAttention)
        self._fill_heads(op, instruction, attrs)
        op.window, op.scale = attrs.window or 0, attrs.scale

    _FILL: ClassVar[dict[str, Callable[[NativeProgram, _Op, Instruction], None]]] = {
        "embedding": _fill_embedding,
        "rms_norm": _fill_norm,
        "add_rms_norm": _fill_norm,
        "linear": _fill_linear,
        "qkv_rope_kv": _fill_qkv,
        "paged_attention": _fill_attention,
    }


class _PackedWeights:
    """The linear operators' weights in the kernels' layout, in one mapping, on huge pages where there are any."""

    def __init__(self, engine: Engine, library: ctypes.CDLL, plan: Plan) -> None:
        names = {i.inputs["weight"].name for i in plan.instructions if i.node.op == "linear"}
        kind = _TYPES[engine.dtype]
        library.eh_packed_elements.restype = c_int64
        offsets, total = {}, 0
        for name in sorted(names):
            n, k = (int(dim) for dim in engine.graph.weights[name].shape)
            offsets[name] = total
            size = library.eh_packed_elements(c_int64(n), c_int64(k), kind) * engine.dtype.itemsize
            total += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = huge_zeros(total)
        base = self._memory.data_ptr()
        self.address = {name: base + offset for name, offset in offsets.items()}
        scratch = engine.stored.scratch(names)
        for name in engine.stored.in_file_order(names):
            weight = engine.stored.read(name, scratch)
            weight = weight if weight.dtype in _TYPES else weight.float()
            n, k = weight.shape
            source, target = c_void_p(weight.data_ptr()), c_void_p(self.address[name])
            library.eh_pack(source, _TYPES[weight.dtype], c_int64(n), c_int64(k), kind, target)


def _step_record(step: Step) -> tuple[_Step, list[object]]:
    """The step's pointers, and what must outlive the call."""
    tables = [np.ascontiguousarray(table) for table in step.block_tables]
    pointers = (c_void_p * len(tables))(*(table.ctypes.data for table in tables))
    widths = (c_int64 * len(tables))(*(table.shape[1] for table in tables))
    row_of_token: Ints = np.repeat(np.arange(step.num_seqs, dtype=np.int32), np.diff(step.query_start))
    record = _Step(
        step.num_tokens,
        step.num_seqs,
        len(step.logits_rows),
        *(a.ctypes.data for a in (step.token_ids, step.positions, step.query_start, step.seq_lens, step.logits_rows)),
        row_of_token.ctypes.data,
        ctypes.addressof(pointers),
        ctypes.addressof(widths),
    )
    return record, [tables, pointers, widths, row_of_token]
