"""Laws of the native kernels alone: products of every shape, one OpenMP runtime, the build and its fallback."""

from __future__ import annotations

import ctypes
import logging
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from inference_service.runners import native_build
from inference_service.runners.engine import Engine, Version
from inference_service.runners.native_build import native_library
from inference_service.runners.native_program import _KINDS, _TYPES, NativeProgram, _Op, _Step

HERE = Path(__file__).parent
SOURCES = Path(native_build.__file__).parent / "native"


@pytest.fixture(scope="module")
def library():
    return native_library() or pytest.skip("no C++ compiler for the native kernels")


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """The kernels built for the matrix unit, its instructions emulated."""
    if native_library() is None:
        pytest.skip("no C++ compiler for the native kernels")
    out = tmp_path_factory.mktemp("amx")
    flags = ["-O1", "-std=c++17", "-ffp-contract=off", "-fPIC", "-fopenmp", "-D__AMX_BF16__", "-DEH_EMULATE_AMX"]
    include = ["-include", str(HERE / "amx_emulation.hpp")]
    source = str(SOURCES / "program.cpp")
    subprocess.run(["g++", *flags, *include, "-c", source, "-o", out / "k.o"], check=True, timeout=100)
    subprocess.run(["g++", "-shared", out / "k.o", "-o", out / "k.so"], check=True, timeout=100)
    return ctypes.CDLL(str(out / "k.so"))


def linear(library, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, threads: int = 1) -> torch.Tensor:
    n, k = weight.shape
    kind = _TYPES[weight.dtype]
    library.eh_packed_elements.restype = ctypes.c_int64
    sizes = ctypes.c_int64(n), ctypes.c_int64(k)
    packed = torch.empty(library.eh_packed_elements(*sizes, kind), dtype=weight.dtype)
    library.eh_pack(ctypes.c_void_p(weight.data_ptr()), kind, *sizes, kind, ctypes.c_void_p(packed.data_ptr()))
    y = torch.full((len(x), n), float("nan"))
    op = _Op(kind=_KINDS.index("linear"), weight_type=kind, n=n, k=k)
    op.x, op.out, op.weight = x.data_ptr(), y.data_ptr(), packed.data_ptr()
    op.bias = bias.data_ptr() if bias is not None else None
    library.eh_run(ctypes.byref(op), ctypes.c_int64(1), ctypes.byref(_Step(tokens=len(x))), threads)
    return y


SHAPES = [(1, 16, 32), (1, 97, 37), (3, 48, 64), (5, 40, 50), (8, 130, 96), (17, 64, 33), (33, 31, 64), (70, 100, 129)]


@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_right_for_every_shape(library, rows, n, k, dtype):
    random = torch.Generator().manual_seed(0)
    x, bias = torch.randn(rows, k, generator=random), torch.randn(n, generator=random)
    weight = torch.randn(n, k, generator=random).to(dtype)
    expected = (x.double() @ weight.double().T + bias.double()).float()
    # bfloat16 rounds x where there is a matrix unit.
    atol = 1e-4 if dtype == torch.float32 else 0.3
    torch.testing.assert_close(linear(library, x, weight, bias), expected, atol=atol, rtol=1e-4)
    torch.testing.assert_close(linear(library, x, weight, None, threads=3), expected - bias, atol=atol, rtol=1e-4)


@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
def test_matrix_unit_products_are_right_for_every_shape(emulated, rows, n, k):
    random = torch.Generator().manual_seed(0)
    x, bias = torch.randn(rows, k, generator=random).bfloat16().float(), torch.randn(n, generator=random)
    weight = torch.randn(n, k, generator=random).bfloat16()
    expected = (x.double() @ weight.double().T + bias.double()).float()
    torch.testing.assert_close(linear(emulated, x, weight, bias), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(linear(emulated, x, weight, None, threads=3), expected - bias, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [2, 7, 8, 9, 31, 64, 65])
def test_a_rows_product_is_bit_for_bit_the_same_alone_and_among_others(library, rows):
    random = torch.Generator().manual_seed(1)
    x, weight = torch.randn(rows, 67, generator=random), torch.randn(90, 67, generator=random)
    together = linear(library, x, weight, None, threads=2)
    alone = torch.cat([linear(library, x[i : i + 1].clone(), weight, None) for i in range(rows)])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("options", [{}, {"window": 40}, {"heads": 6, "kv_heads": 2, "head_dim": 32}])
def test_matrix_unit_attention_stays_near_float32(emulated, library, tiny_engine, steps, shape, options):
    wide = {"heads": 2, "kv_heads": 1, "head_dim": 64, "hidden": 64, "block_size": 32, "max_seq_len": 512}
    engine = tiny_engine(shape(dtype="bfloat16", **{**wide, **options}))
    random = np.random.default_rng(0)
    prompt, chunk = random.integers(0, 97, 300), random.integers(0, 97, 20)
    logits = []
    for kernels, dtype in ((library, torch.float32), (emulated, torch.bfloat16)):
        loaded = Engine(Version(engine.manifest, engine.dir), torch.device("cpu"))
        loaded.dtype = dtype
        loaded.allocate_pools(24)
        for pool in loaded.pools.values():
            pool.fill_(float("nan"))
        program = NativeProgram(loaded, kernels)
        tables = np.arange(1, 23).reshape(2, 11)
        program.run(steps.make([(prompt, 0), (prompt[:70], 0)], tables))
        logits.append(program.run(steps.make([(chunk, 300), (chunk[:1], 70)], tables)).clone())
    torch.testing.assert_close(logits[1], logits[0], atol=0.12, rtol=0.03)


def test_one_openmp_runtime_is_loaded(library):
    lines = Path("/proc/self/maps").read_text().splitlines()
    runtimes = {line.split()[-1] for line in lines if any(name in line for name in ("libgomp", "libiomp", "libomp"))}
    assert len(runtimes) == 1, runtimes


def test_without_a_compiler_torch_operators_are_used_and_the_log_says_so_once(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    native_library.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert native_library() is None
            assert native_library() is None
        assert [record.getMessage() for record in caplog.records if "install g++" in record.getMessage()] != []
        assert len(caplog.records) == 1
    finally:
        native_library.cache_clear()


def test_records_have_the_size_of_their_c_twins(library):
    assert library.eh_op_size() == ctypes.sizeof(_Op)
