"""Hostile GGUF files, made byte by byte: every number in them is checked before anything is allocated from it."""

from __future__ import annotations

import itertools
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder_service.job import SourceSpec
from builder_service.sources import gguf_tokenizer, open_checkpoint
from builder_service.sources.gguf_header import MAX_ELEMENTS, SCALARS, read_gguf_header
from builder_service.sources.gguf_tokenizer import Vocabulary, build_tokenizer
from enginehouse.errors import EnginehouseError, FailedPrecondition

MAX = (1 << 64) - 1
F32, Q4_0 = 0, 2
U32, STRING, ARRAY, U64 = 4, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + content


def entry(name: str | bytes = "t", dims: tuple[int, ...] = (8,), kind: int = F32, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def whole(
    pairs: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: int = 0,
    num_keys: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    keys = len(pairs) if num_keys is None else num_keys
    count = len(tensors) if num_tensors is None else num_tensors
    raw = b"GGUF" + struct.pack("<IQQ", 3, count, keys) + b"".join(pairs) + b"".join(tensors)
    return raw + bytes(-len(raw) % 32 + data)


ALIGNMENT = "general.alignment"
DAMAGED: dict[str, tuple[bytes, str]] = {
    "tensors": (whole(num_tensors=MAX), "tensors"),
    "keys": (whole(num_keys=MAX), "metadata keys"),
    "key longer than any": (whole((struct.pack("<Q", MAX),), num_keys=1), "bytes in a string"),
    "string value": (whole((pair("k", STRING, struct.pack("<Q", 1 << 40)),)), "key k"),
    "string beyond the file": (whole((pair("k", STRING, struct.pack("<Q", 1 << 20)),)), "key k"),
    "list of numbers": (whole((pair("k", ARRAY, array(U64, MAX)),)), "key k"),
    "list that wraps": (whole((pair("k", ARRAY, array(U64, 1 << 61)),)), "key k"),
    "list of strings": (whole((pair("k", ARRAY, array(STRING, 1 << 60)),)), "key k"),
    "list beyond the file": (whole((pair("k", ARRAY, array(STRING, 1 << 20)),)), "key k"),
    "list of lists": (whole((pair("k", ARRAY, array(ARRAY, 1, array(U32, 1) * 1)),)), "key k"),
    "lists in lists": (whole((pair("k", ARRAY, array(ARRAY, 1) * 1000),)), "key k"),
    "list of an unknown type": (whole((pair("k", ARRAY, array(77, 1)),)), "key k"),
    "unknown type": (whole((pair("k", 77, b""),)), "key k"),
    "key twice": (whole((pair("k", U32, bytes(4)), pair("k", U32, bytes(4)))), "key k is given twice"),
    "key no text": (whole((pair(b"\xff\xfe", U32, bytes(4)),)), "UTF-8"),
    "alignment zero": (whole((pair(ALIGNMENT, U32, bytes(4)),)), ALIGNMENT),
    "alignment 24": (whole((pair(ALIGNMENT, U32, struct.pack("<I", 24)),)), ALIGNMENT),
    "alignment huge": (whole((pair(ALIGNMENT, U64, struct.pack("<Q", 1 << 63)),)), ALIGNMENT),
    "alignment a list": (whole((pair(ALIGNMENT, ARRAY, array(U32, 1, bytes(4))),)), ALIGNMENT),
    "alignment true": (whole((pair(ALIGNMENT, 7, b"\1"),)), ALIGNMENT),
    "tensor twice": (whole((), (entry(), entry(offset=32)), 64), "tensor t is given twice"),
    "many dims": (whole((), (entry(dims=(1,) * 5),), 64), "tensor t"),
    "dims stated": (whole((), (text("t") + struct.pack("<I", 1 << 31),), 64), "tensor t"),
    "dim zero": (whole((), (entry(dims=(8, 0)),), 64), "tensor t"),
    "no dims": (whole((), (entry(dims=()),), 64), "tensor t"),
    "product wraps to nothing": (whole((), (entry(dims=(1 << 32, 1 << 32)),), 64), "tensor t"),
    "product wraps to little": (whole((), (entry(dims=(1 << 62, 4, 2)),), 64), "tensor t"),
    "quantised product wraps": (whole((), (entry(dims=(1 << 59, 32), kind=Q4_0),), 64), "tensor t"),
    "half a block": (whole((), (entry(dims=(33,), kind=Q4_0),), 64), "tensor t"),
    "offset wraps": (whole((), (entry(offset=MAX - 31),), 64), "tensor t"),
    "offset beyond": (whole((), (entry(offset=1 << 20),), 64), "tensor t"),
    "offset unaligned": (whole((), (entry(offset=4),), 64), "tensor t"),
    "last byte missing": (whole((), (entry(),), 31), "tensor t"),
    "overlap": (whole((), (entry(dims=(16,)), entry("u", offset=32)), 128), "tensor u overlaps"),
    "same place": (whole((), (entry(), entry("u")), 128), "overlaps"),
    "gap": (whole((), (entry(), entry("u", offset=96)), 128), "tensor u begins"),
    "kind removed from the format": (whole((), (entry(kind=4),), 64), "tensor t"),
    "kind unknown": (whole((), (entry(kind=999),), 64), "tensor t"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_each_number_is_checked_before_memory_is_taken(tmp_path, case):
    raw, where = DAMAGED[case]
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    with pytest.raises(FailedPrecondition) as caught:
        read_gguf_header(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert caught.value.reason in ("CHECKPOINT_CORRUPT", "CHECKPOINT_TRUNCATED")
    assert caught.value.metadata["file"] == "x.gguf"
    assert where in caught.value.message


def test_a_good_file_made_the_same_way_is_read(tmp_path):
    pairs = (pair("k", ARRAY, array(STRING, 2, text("a") + text("b"))), pair(ALIGNMENT, U32, struct.pack("<I", 64)))
    raw = whole(pairs, (entry(dims=(4, 2)), entry("u", offset=64)))
    (tmp_path / "x.gguf").write_bytes(raw + bytes(-len(raw) % 64 + 128))
    header = read_gguf_header(tmp_path / "x.gguf")
    assert header.metadata == {"k": ["a", "b"], ALIGNMENT: 64}
    assert header.tensors["t"].shape == (2, 4)
    assert header.tensors["u"].offset - header.tensors["t"].offset == 64


@pytest.mark.parametrize("kind", sorted(SCALARS))
def test_lists_larger_than_any_vocabulary_are_not_read_although_the_file_holds_them(tmp_path, kind):
    path = tmp_path / "x.gguf"
    path.write_bytes(whole((pair("k", ARRAY, array(kind, MAX_ELEMENTS + 1)),)))
    with path.open("ab") as file:
        file.truncate(1 << 30)  # sparse
    tracemalloc.start()
    with pytest.raises(FailedPrecondition, match="elements of lists"):
        read_gguf_header(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_many_lists_together_are_bounded(tmp_path):
    lists = tuple(pair(f"k{n}", ARRAY, array(0, 1 << 18, bytes(1 << 18))) for n in range(20))
    path = tmp_path / "x.gguf"
    path.write_bytes(whole(lists))
    tracemalloc.start()
    with pytest.raises(FailedPrecondition, match="key k16 states"):
        read_gguf_header(path)
    assert tracemalloc.get_traced_memory()[1] < 128 << 20
    tracemalloc.stop()


def vocabulary(tokens: list[str]) -> Vocabulary:
    section = {"model": "llama", "tokens": tokens, "scores": [0.0] * len(tokens), "token_type": [1] * len(tokens)}
    return Vocabulary({f"tokenizer.ggml.{key}": value for key, value in section.items()})


def test_tokens_that_join_in_too_many_ways_are_refused(monkeypatch):
    monkeypatch.setattr(gguf_tokenizer, "MAX_MERGES", 1000)
    with pytest.raises(FailedPrecondition, match="ways"):
        build_tokenizer(vocabulary(["a" * length for length in range(1, 100)]))


def test_one_token_of_a_megabyte_takes_no_time_in_its_square():
    start = time.process_time()
    gguf_tokenizer._derive_merges(vocabulary(["<unk>", "a", "ab" * 500_000]))
    assert time.process_time() - start < 5


@pytest.mark.parametrize("values", [[np.nan, 1, 1, 1], [0, 1, 1, 1], [-1, 1, 1, 1], [np.inf, 1, 1, 1], []])
def test_rope_divisors_that_are_no_divisors_are_refused(write_gguf, make_model, values):
    divisors = np.array(values, np.float32)
    model = make_model("llama")
    if not values:
        divisors = np.ones(1 << 13, np.float32)
    path = write_gguf(model, "llama", extra=lambda writer: writer.add_tensor("rope_freqs.weight", divisors))
    with pytest.raises(EnginehouseError, match="rope_freqs"):
        open_checkpoint(SourceSpec(kind="gguf", path=str(path)), path.parent / "cache")


KEYS = st.one_of(st.text(max_size=12), st.sampled_from(["general.architecture", "llama.block_count", ALIGNMENT]))
SCALAR = st.tuples(st.sampled_from(sorted(SCALARS)), st.binary(min_size=8, max_size=8)).map(
    lambda drawn: (drawn[0], drawn[1][: struct.calcsize("<" + SCALARS[drawn[0]])])
)
VALUES = st.one_of(
    SCALAR,
    st.text(max_size=20).map(lambda value: (STRING, text(value))),
    st.tuples(st.integers(0, 13), st.integers(0, MAX), st.binary(max_size=64)).map(lambda a: (ARRAY, array(*a))),
)
PAIRS = st.builds(lambda key, value: pair(key, *value), KEYS, VALUES)
DIMS = st.lists(st.one_of(st.integers(0, 64), st.integers(0, MAX)), max_size=5).map(tuple)
ENTRIES = st.builds(entry, st.text(max_size=12), DIMS, st.integers(0, 40), st.one_of(st.just(0), st.integers(0, MAX)))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(PAIRS, max_size=4), st.lists(ENTRIES, max_size=4), st.integers(0, 4096))
def test_any_table_is_read_or_refused_and_what_is_read_lies_in_the_file(tmp_path: Path, pairs, entries, data):
    path = tmp_path / "x.gguf"
    path.write_bytes(whole(tuple(pairs), tuple(entries), data))
    try:
        header = read_gguf_header(path)
    except EnginehouseError:
        return
    places = sorted((tensor.offset, tensor.offset + tensor.nbytes) for tensor in header.tensors.values())
    assert all(0 <= start < end <= path.stat().st_size for start, end in places)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
