"""A weights file is read within its bounds, whatever is in it: a typed error or its tensors, never a crash."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from enginehouse.errors import DataLoss
from inference_service.runners.weights import StoredWeights

from .conftest import TinyEngine

Mutate = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    shape = TinyEngine.Shape(layers=1, hidden=16, heads=2, kv_heads=1, ffn=16, vocab=11, bias=True, dtype="bfloat16")
    return TinyEngine(tmp_path_factory.mktemp("weights") / "v", shape)


@pytest.fixture(scope="module")
def path(engine: TinyEngine) -> Path:
    return engine.dir / StoredWeights.FILE


@pytest.fixture(scope="module")
def whole(path: Path) -> bytes:
    return path.read_bytes()


def read_all(engine: TinyEngine) -> dict[str, torch.Tensor]:
    stored = StoredWeights(engine.dir, engine.graph)
    try:
        return {name: stored.read(name) for name in stored.in_file_order(engine.graph.weights)}
    finally:
        stored.close()


def header_of(data: bytes) -> dict[str, dict[str, object]]:
    return json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])


def with_header(data: bytes, header: object) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + struct.unpack("<Q", data[:8])[0] :]


@pytest.fixture
def written(path: Path, whole: bytes) -> Callable[[bytes], None]:
    yield path.write_bytes
    path.write_bytes(whole)


def test_read_and_mapped_tensors_are_the_stored_ones(engine: TinyEngine) -> None:
    stored = StoredWeights(engine.dir, engine.graph)
    scratch = stored.scratch(engine.graph.weights)
    for name, expected in engine.weights.items():
        assert torch.equal(stored.read(name), expected)
        assert torch.equal(stored.read(name, scratch), expected)
        assert torch.equal(stored.map(name), expected)
    mapped = stored.map("embed.weight")
    stored.close()
    stored.close()
    assert torch.equal(mapped, engine.weights["embed.weight"])


def test_a_file_cut_anywhere_is_a_typed_error(
    engine: TinyEngine, written: Callable[[bytes], None], whole: bytes
) -> None:
    for length in {*range(200), *range(0, len(whole), 97), len(whole) - 1}:
        written(whole[:length])
        with pytest.raises(DataLoss) as error:
            read_all(engine)
        assert error.value.metadata["file"] == StoredWeights.FILE


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_header_is_a_typed_error_or_no_damage(
    engine: TinyEngine, path: Path, whole: bytes, data: st.DataObject
) -> None:
    """Bytes of the header change; where its meaning does not (spaces), the tensors are as they were."""
    damaged = bytearray(whole)
    length = 8 + struct.unpack("<Q", whole[:8])[0]
    for position, value in data.draw(st.lists(st.tuples(st.integers(0, length - 1), st.integers(0, 255)), max_size=4)):
        damaged[position] = value
    path.write_bytes(damaged)
    try:
        with contextlib.suppress(DataLoss):
            read_all(engine)
    finally:
        path.write_bytes(whole)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, 2**64 - 1))
@example(length=2**63)
@example(length=100_000_001)
def test_a_header_of_any_claimed_length_takes_no_memory(
    engine: TinyEngine, path: Path, whole: bytes, length: int
) -> None:
    path.write_bytes(struct.pack("<Q", length) + whole[8:])
    tracemalloc.start()
    try:
        if length != struct.unpack("<Q", whole[:8])[0]:
            with pytest.raises(DataLoss):
                read_all(engine)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
        path.write_bytes(whole)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [2**40, 2**40]},
        {"shape": [-1, 16]},
        {"shape": [2**200, 16]},
        {"data_offsets": [0, 2**62]},
        {"data_offsets": [2**62, 2**62 + 352]},
        {"data_offsets": [-352, 0]},
        {"data_offsets": [352, 0]},
        {"data_offsets": [0]},
        {"dtype": "F32"},
        {"dtype": "I64"},
        {"dtype": None},
    ],
    ids=json.dumps,
)
def test_a_header_that_points_outside_the_file_or_lies_about_a_tensor_is_refused(
    engine: TinyEngine, written: Callable[[bytes], None], whole: bytes, change: dict[str, object]
) -> None:
    header = header_of(whole)
    header["embed.weight"] |= change
    written(with_header(whole, header))
    with pytest.raises(DataLoss):
        read_all(engine)


@pytest.mark.parametrize("header", [[], {}, "x", {"embed.weight": 1}, {"embed.weight": {}}], ids=json.dumps)
def test_a_header_of_another_form_is_refused(
    engine: TinyEngine, written: Callable[[bytes], None], whole: bytes, header: object
) -> None:
    written(with_header(whole, header))
    with pytest.raises(DataLoss):
        read_all(engine)


def test_deeply_nested_json_is_refused(engine: TinyEngine, written: Callable[[bytes], None]) -> None:
    text = b'{"a":' + b"[" * 200_000
    written(struct.pack("<Q", len(text)) + text)
    with pytest.raises(DataLoss):
        read_all(engine)


def test_a_file_cut_while_it_is_read_is_a_typed_error_and_one_replaced_is_read_to_its_end(
    engine: TinyEngine, path: Path, written: Callable[[bytes], None], whole: bytes
) -> None:
    stored = StoredWeights(engine.dir, engine.graph)
    path.with_name("fresh").write_bytes(bytes(len(whole)))
    path.with_name("fresh").replace(path)
    assert torch.equal(stored.read("embed.weight"), engine.weights["embed.weight"])
    written(whole)
    stored = StoredWeights(engine.dir, engine.graph)
    os.truncate(path, len(whole) - 1)
    last = stored.in_file_order(engine.graph.weights)[-1]
    with pytest.raises(DataLoss, match="cut short"):
        stored.read(last)


def test_a_link_is_not_followed(engine: TinyEngine, path: Path, whole: bytes) -> None:
    aside = path.rename(path.with_name("aside"))
    path.symlink_to(aside)
    try:
        with pytest.raises(DataLoss):
            read_all(engine)
    finally:
        aside.replace(path)
