"""Downloads from a hub that drops, refuses, lies, moves and goes away."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from builder_service.job import BuildJob, ChildEvent, ProgressEvent, ResultEvent, SourceSpec
from builder_service.sources import open_checkpoint, open_dummy
from enginehouse.errors import (
    EnginehouseError,
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from tests.builder_service.sources.fake_hub import FakeHub, Fault, serve_hub

SPEC = SourceSpec(kind="hub", repo="owner/name")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    from huggingface_hub import close_session, constants

    from builder_service.sources import hub_transfer

    monkeypatch.setattr(hub_transfer, "PAUSE_SECONDS", 0.01)
    with serve_hub(with_cdn=True) as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        yield served
    close_session()


@pytest.fixture
def checkpoint(make_checkpoint) -> Path:
    """About 700 KB in two or more shards, with files beside them that nobody wants."""
    directory = make_checkpoint(hidden_size=96, intermediate_size=256, max_shard_size="300KB")
    (directory / "modeling_custom.py").write_text("raise SystemExit")
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x04pickle")
    shutil.copy(next(directory.glob("model-*.safetensors")), directory / "consolidated.safetensors")
    (directory / "original").mkdir()
    (directory / "original" / "config.json").write_text("{}")
    return directory


def fetch(tmp_path: Path, spec: SourceSpec = SPEC, offline: bool = False, progress=lambda done, total: None):
    return open_checkpoint(spec, tmp_path / "cache", offline, progress)


def fails(tmp_path: Path, kind: type[EnginehouseError], reason: str, spec: SourceSpec = SPEC) -> EnginehouseError:
    with pytest.raises(kind) as caught:
        fetch(tmp_path, spec)
    assert caught.value.reason == reason
    return caught.value


def test_a_repository_is_fetched_without_code_pickles_or_second_copies(hub, checkpoint, tmp_path):
    commit = hub.add("owner/name", checkpoint)
    got = fetch(tmp_path)
    assert (got.origin.kind, got.origin.location, got.origin.revision) == ("hub", "owner/name", commit)
    local = open_checkpoint(SourceSpec(kind="huggingface", path=str(checkpoint)), tmp_path / "other")
    assert got.names() == local.names()
    assert all(got.tensor(name).equal(local.tensor(name)) for name in got.names())
    for unwanted in ("custom.py", ".bin", "consolidated", "original"):
        assert not hub.gets(unwanted)


def test_the_token_goes_to_the_hub_and_nowhere_else(hub, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.add("owner/name", checkpoint)
    fetch(tmp_path)
    tokens = {"cdn": set(), "hub": set()}
    for request in hub.requests:
        tokens["cdn" if request.by_cdn else "hub"].add(request.token)
    assert tokens == {"cdn": {None}, "hub": {"Bearer hf_secret"}}
    on_disk = b"".join(f.read_bytes() for f in (tmp_path / "cache").rglob("*") if f.is_file())
    assert b"hf_secret" not in on_disk


def test_progress_moves_to_a_total_that_is_known_from_the_start(hub, checkpoint, tmp_path):
    hub.add("owner/name", checkpoint)
    hub.fault = Fault(bytes_per_second=600_000)
    steps: list[tuple[float, int, int]] = []
    fetch(tmp_path, progress=lambda done, total: steps.append((time.monotonic(), done, total)))
    sizes = [done for _, done, _ in steps]
    assert sizes == sorted(sizes)
    assert {total for _, _, total in steps} == {sizes[-1]}
    assert sizes[-1] > 500_000
    moved = [time for (time, done, _), (_, before, _) in zip(steps[1:], steps, strict=False) if done > before]
    assert len(moved) >= 3
    assert all(later - earlier < 1.0 for earlier, later in itertools.pairwise(moved))


def test_a_connection_that_drops_is_resumed_where_it_was(hub, checkpoint, tmp_path):
    hub.add("owner/name", checkpoint)
    hub.fault = Fault(drop_after=100_000, drops=3)
    got = fetch(tmp_path)
    assert got.names()
    again = [request for request in hub.gets(".safetensors") if request.range]
    assert again
    weights = sum(file.stat().st_size for file in checkpoint.glob("model-*.safetensors"))
    assert sum(request.sent for request in hub.gets(".safetensors")) <= weights + 3 * 2 * 100_000


def test_a_server_that_ignores_the_range_gives_the_right_bytes(hub, checkpoint, tmp_path):
    hub.add("owner/name", checkpoint)
    hub.fault = Fault(drop_after=100_000, drops=1, ignores_range=True)
    fetch(tmp_path)


def test_a_connection_that_always_drops_at_once_is_unavailable(hub, checkpoint, tmp_path):
    hub.add("owner/name", checkpoint)
    hub.fault = Fault(drop_after=-1, drops=1000)
    start = time.monotonic()
    fails(tmp_path, Unavailable, "HUB_UNREACHABLE")
    assert time.monotonic() - start < 30


def test_what_was_fetched_before_a_failure_is_not_fetched_again(hub, checkpoint, tmp_path):
    hub.add("owner/name", checkpoint)
    last = sorted(checkpoint.glob("model-*.safetensors"))[-1].name
    hub.fault = Fault(status=500, path_has=last)
    fails(tmp_path, Unavailable, "HUB_UNREACHABLE")
    hub.fault = Fault()
    before = len(hub.requests)
    fetch(tmp_path)
    assert {request.path.rsplit("/", 1)[1] for request in hub.requests[before:] if "/resolve/" in request.path} == {
        last
    }


def test_a_commit_in_the_cache_needs_no_network(hub, checkpoint, tmp_path):
    commit = hub.add("owner/name", checkpoint)
    digest = fetch(tmp_path).digest(lambda *_: None)
    hub.requests.clear()
    pinned = fetch(tmp_path, SourceSpec(kind="hub", repo="owner/name", revision=commit))
    assert pinned.digest(lambda *_: None) == digest
    assert hub.requests == []
    assert fetch(tmp_path, offline=True).digest(lambda *_: None) == digest
    assert hub.requests == []


def test_a_branch_that_moved_is_fetched_anew_and_the_old_commit_stays(hub, checkpoint, tmp_path, make_model):
    old = hub.add("owner/name", checkpoint)
    first = fetch(tmp_path).digest(lambda *_: None)
    shutil.rmtree(checkpoint / "original")
    config = (checkpoint / "config.json").read_text()
    (checkpoint / "config.json").write_text(config.replace('"eos_token_id": 2', '"eos_token_id": 3'))
    new = hub.add("owner/name", checkpoint)
    before = len(hub.gets(".safetensors"))
    moved = fetch(tmp_path)
    assert moved.origin.revision == new != old
    assert moved.config["eos_token_id"] == 3
    assert len(hub.gets(".safetensors")) == before, "unchanged files are shared by their digests"
    assert moved.digest(lambda *_: None) != first
    pinned = SourceSpec(kind="hub", repo="owner/name", revision=old)
    assert fetch(tmp_path, pinned, offline=True).digest(lambda *_: None) == first


def test_the_hubs_digest_is_used_and_large_files_are_not_hashed_again(hub, checkpoint, tmp_path, monkeypatch):
    from builder_service.sources import digest

    hub.add("owner/name", checkpoint)
    got = fetch(tmp_path)
    hashed: list[str] = []
    real = digest.digest_file
    monkeypatch.setattr(digest, "digest_file", lambda path, **kw: (hashed.append(path.name), real(path, **kw))[1])
    got.digest(lambda *_: None)
    assert hashed
    assert all(len(name) == 40 for name in hashed), "git's sha1 names the small files, and only they were read"


def test_bytes_that_are_not_what_the_hub_lists_are_refused_and_removed(hub, checkpoint, tmp_path):
    hub.add("owner/name", checkpoint)
    hub.fault = Fault(lies=True)
    assert fails(tmp_path, Unavailable, "HUB_CORRUPT").metadata["file"]
    hub.fault = Fault()
    fetch(tmp_path)


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        (Fault(status=401, code="RepoNotFound", path_has="/api/"), NotFound, "HUB_NOT_FOUND"),
        (Fault(status=401, code="GatedRepo", path_has="/resolve/"), PermissionDenied, "HUB_GATED"),
        (Fault(status=403, code="GatedRepo", path_has="/resolve/"), PermissionDenied, "HUB_GATED"),
        (Fault(status=403, path_has="/api/"), PermissionDenied, "HUB_FORBIDDEN"),
        (Fault(status=404, code="RevisionNotFound", path_has="/api/"), NotFound, "HUB_NOT_FOUND"),
        (Fault(status=404, code="EntryNotFound", path_has="/resolve/"), NotFound, "HUB_NOT_FOUND"),
        (Fault(status=500, path_has="/api/"), Unavailable, "HUB_UNREACHABLE"),
        (Fault(status=503, path_has="/resolve/"), Unavailable, "HUB_UNREACHABLE"),
        (Fault(status=418, path_has="/api/"), Unavailable, "HUB_UNREACHABLE"),
        (Fault(status=200, path_has="/api/"), Unavailable, "HUB_UNREACHABLE"),
    ],
)
def test_each_refusal_of_the_hub_is_a_typed_error(hub, checkpoint, tmp_path, fault, kind, reason):
    hub.add("owner/name", checkpoint)
    hub.fault = fault
    error = fails(tmp_path, kind, reason)
    assert "owner/name" in error.message


def test_a_repository_that_does_not_exist_is_not_found(hub, tmp_path):
    fails(tmp_path, NotFound, "HUB_NOT_FOUND")


@pytest.mark.parametrize("file", ["", pytest.param("model.gguf", marks=pytest.mark.long)])
@pytest.mark.parametrize("silent", [False, True])
def test_an_unreachable_hub_is_unavailable_within_ten_seconds(tmp_path, monkeypatch, file, silent):
    """A port where nobody listens, and one where nobody answers."""
    from huggingface_hub import close_session, constants

    with socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        port = listener.getsockname()[1] if silent else 9
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        start = time.monotonic()
        fails(tmp_path, Unavailable, "HUB_UNREACHABLE", SourceSpec(kind="hub", repo="owner/name", file=file))
        assert time.monotonic() - start < 10.5
    close_session()


def test_a_download_that_does_not_fit_is_refused_before_it_starts(hub, checkpoint, tmp_path, monkeypatch):
    hub.add("owner/name", checkpoint)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert fails(tmp_path, ResourceExhausted, "DISK_FULL").metadata["free_bytes"] == "1000"
    assert not hub.gets("")


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        ({"auto_map": {"AutoModel": "x.Y"}}, Unimplemented, "REMOTE_CODE"),
        ({"architectures": ["MambaForCausalLM"]}, Unimplemented, "UNSUPPORTED_ARCHITECTURE"),
        ({"quantization_config": {"quant_method": "awq"}}, Unimplemented, "UNSUPPORTED_QUANTIZATION"),
    ],
)
def test_the_config_is_checked_before_the_weights_are_fetched(hub, checkpoint, tmp_path, edit, change, kind, reason):
    edit(checkpoint / "config.json", lambda config: config.update(change))
    hub.add("owner/name", checkpoint)
    fails(tmp_path, kind, reason)
    assert not hub.gets("model-0")


def test_pickled_weights_are_refused_and_not_fetched(hub, checkpoint, tmp_path):
    for file in checkpoint.glob("model*"):
        file.unlink()
    hub.add("owner/name", checkpoint)
    assert fails(tmp_path, FailedPrecondition, "PICKLED_WEIGHTS").metadata["file"] == "pytorch_model.bin"
    assert not hub.gets(".bin")


def test_dummy_weights_fetch_the_config_and_the_tokenizer_alone(hub, checkpoint, tmp_path):
    commit = hub.add("owner/name", checkpoint)
    got = open_dummy(SPEC, tmp_path / "cache", False, lambda *_: None, seed=3)
    assert (got.origin.kind, got.origin.location, got.origin.revision) == ("dummy", "owner/name", commit)
    assert not hub.gets("model-0")
    (tmp_path / "tokenizer").mkdir()
    got.write_tokenizer(tmp_path / "tokenizer")
    assert (tmp_path / "tokenizer" / "tokenizer.json").is_file()


def test_a_gguf_file_is_fetched_alone(hub, write_gguf, make_model, tmp_path):
    files = tmp_path / "files" / "sub"
    files.mkdir(parents=True)
    shutil.copy(write_gguf(make_model("llama"), "llama"), files / "model.gguf")
    (files / "other.gguf").write_bytes(b"GGUF")
    hub.add("owner/name", tmp_path / "files")
    spec = SourceSpec(kind="hub", repo="owner/name", file="sub/model.gguf")
    assert fetch(tmp_path, spec).origin.location == "owner/name/sub/model.gguf"
    assert not hub.gets("other")
    fails(tmp_path, NotFound, "HUB_NOT_FOUND", SourceSpec(kind="hub", repo="owner/name", file="none.gguf"))


@pytest.mark.parametrize("field", ["revision", "file", "repo"])
@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../b", "a\0b", "x" * 600])
def test_a_name_that_leads_out_of_the_cache_is_refused(hub, tmp_path, field, name):
    spec = msgspec.structs.replace(SPEC, **{field: name})
    with pytest.raises(EnginehouseError) as caught:
        fetch(tmp_path, spec)
    assert caught.value.reason == "BAD_REPO_ID"
    assert hub.requests == []


def start_child(hub: FakeHub, tmp_path: Path) -> subprocess.Popen[bytes]:
    places = {"store": str(tmp_path / "store"), "cache": str(tmp_path / "cache")}
    job = BuildJob(engine_id="tiny", source=SPEC, verify="off", **places)
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret"}
    child = subprocess.Popen(
        [sys.executable, "-m", "builder_service.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    child.stdin.write(msgspec.json.encode(job))
    child.stdin.close()
    child.stdin = None
    return child


def events(lines: bytes) -> list[ChildEvent]:
    return [msgspec.json.decode(line, type=ChildEvent) for line in lines.splitlines()]


def test_a_child_that_is_killed_midway_is_followed_by_one_that_resumes(hub, checkpoint, tmp_path):
    commit = hub.add("owner/name", checkpoint)
    hub.fault = Fault(bytes_per_second=200_000)
    child = start_child(hub, tmp_path)
    deadline = time.monotonic() + 60
    while sum(request.sent for request in hub.gets(".safetensors")) < 150_000:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=30)
    parts = {part.name: part.stat().st_size for part in (tmp_path / "cache").rglob("*.part")}
    assert sum(parts.values()) > 0
    hub.fault, first = Fault(), len(hub.requests)
    child = start_child(hub, tmp_path)
    out, err = child.communicate(timeout=100)
    assert events(out)[-1] == ResultEvent("tiny", 1, reused=False)
    ranges = [request.range for request in hub.requests[first:] if request.range]
    assert sorted(ranges) == sorted({f"bytes={size}-" for size in parts.values() if size} and ranges)
    weights = sum(file.stat().st_size for file in checkpoint.glob("model-*.safetensors"))
    sent = sum(request.sent for request in hub.requests[first:] if request.path.endswith(".safetensors"))
    assert sent <= weights - sum(parts.values()) + sum(
        size for size in parts.values() if f"bytes={size}-" not in ranges
    )
    totals = {event.total for event in events(out) if isinstance(event, ProgressEvent) and event.unit == "bytes"}
    assert 0 not in totals
    store = b"".join(file.read_bytes() for file in (tmp_path / "store").rglob("*.json") if file.is_file())
    assert commit.encode() in store
    assert b"hf_secret" not in out + err + store


@pytest.mark.long
def test_sigterm_ends_a_download_long_before_its_end(hub, checkpoint, tmp_path):
    hub.add("owner/name", checkpoint)
    hub.fault = Fault(bytes_per_second=5_000)
    child = start_child(hub, tmp_path)
    deadline = time.monotonic() + 60
    while not any(request.sent for request in hub.gets(".safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    start = time.monotonic()
    child.terminate()
    child.communicate(timeout=30)
    assert time.monotonic() - start < 10, "most of it is the interpreter's end on a busy machine"
