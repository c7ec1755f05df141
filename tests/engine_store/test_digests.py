from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_store import digests


def _by_the_book(data: bytes, piece: int) -> str:
    parts = [data[start : start + piece] for start in range(0, len(data), piece)]
    return "sha256-64m:" + hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@settings(max_examples=40, deadline=None)
@given(size=st.integers(0, 5000), piece=st.integers(1, 1500), block=st.integers(1, 700), threads=st.integers(1, 4))
def test_digest_is_sha256_over_the_pieces_whatever_the_threads(
    tmp_path_factory: pytest.TempPathFactory, size: int, piece: int, block: int, threads: int
) -> None:
    data = bytes(index * 31 % 251 for index in range(size))
    path = tmp_path_factory.mktemp("digest") / "file"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "PIECE", piece)
        patch.setattr(digests, "_BLOCK", block)
        found = digests.digest_file(path, threads)
        assert found == (size, _by_the_book(data, piece))
        assert digests.digest_bytes(data) == found.digest


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(OSError, match="symbolic"):
        digests.digest_file(tmp_path / "link")


def test_progress_counts_every_byte_and_can_end_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "PIECE", 100)
    path = tmp_path / "file"
    path.write_bytes(b"x" * 950)
    counts: list[int] = []
    digests.digest_file(path, progress=counts.append)
    assert counts == [100] * 9 + [50]

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        digests.digest_file(path, progress=stop)
