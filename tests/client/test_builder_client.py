"""BuilderClient, and LLM with a builder, against scripted daemons over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from enginehouse import (
    LLM,
    BuildConfig,
    BuilderClient,
    BuildFinished,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    LogLine,
    NotFound,
    SamplingParams,
    StageProgress,
    StageStarted,
    Unavailable,
    VerifyOptions,
)
from enginehouse._download import write_files
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from tests.client.scripted import ScriptedServer
from tests.client.scripted_builder import FILES, ScriptedBuilderServer


@pytest.fixture
def daemon() -> Iterator[ScriptedBuilderServer]:
    running = ScriptedBuilderServer()
    yield running
    running.stop()


@pytest.fixture
def client(daemon: ScriptedBuilderServer) -> Iterator[BuilderClient]:
    with BuilderClient(daemon.target) as builder:
        yield builder


def test_a_build_gives_a_version(client: BuilderClient) -> None:
    version = client.build("org/model", "tiny").result(timeout=5)
    assert (version.name, version.engine, version.number) == ("engines/tiny/versions/1", "tiny", 1)
    assert (version.targets[0].name, version.targets[0].verification) == ("torch", "executed")
    assert version.create_time == datetime.fromtimestamp(1000, UTC)
    assert version.limits is not None
    assert (version.limits.max_seq_len, version.limits.max_batch_size) == (128, None)


def test_options_travel(client: BuilderClient, daemon: ScriptedBuilderServer) -> None:
    options = {
        "build_config": BuildConfig(dtype="float32", max_seq_len=64),
        "targets": ["torch", "tensorrt-rtx"],
        "verify": VerifyOptions(off=True),
        "weights": "dummy",
        "labels": {"a": "b"},
        "alias": "prod",
        "force": True,
        "revision": "v1",
    }
    client.build("org/model", "tiny", **options)
    request = daemon.builder.requests[0]
    assert (request.source.hub.repo, request.source.hub.revision) == ("org/model", "v1")
    assert request.build_config.dtype == common_pb2.DATA_TYPE_FLOAT32
    assert [target.form for target in request.targets] == [
        common_pb2.TARGET_FORM_TORCH,
        common_pb2.TARGET_FORM_TENSORRT_RTX,
    ]
    assert (request.verify.off, request.weights, request.alias, request.force) == (
        True,
        builder_pb2.WEIGHTS_SOURCE_DUMMY,
        "prod",
        True,
    )
    assert dict(request.labels) == {"a": "b"}
    assert request.request_id[14] == "4"


def test_a_watch_attaches_again_where_it_was_cut(client: BuilderClient, daemon: ScriptedBuilderServer) -> None:
    daemon.builder.breaks = 2
    events = list(client.build("org/model", "tiny").watch())
    assert [event.sequence for event in events] == list(range(1, 9))
    assert daemon.builder.watches == [0, 2, 4]
    assert isinstance(events[0].detail, StageStarted)
    assert events[0].detail.stage == "fetching"
    assert isinstance(events[1].detail, StageProgress)
    assert isinstance(events[6].detail, LogLine)
    assert isinstance(events[7].detail, BuildFinished)
    assert events[7].detail.version is not None
    assert events[0].time == datetime.fromtimestamp(1001, UTC)


def test_a_failed_build_raises_its_error(client: BuilderClient) -> None:
    handle = client.build("org/model", "bad")
    last = list(handle.watch())[-1].detail
    assert isinstance(last, BuildFinished)
    assert isinstance(last.error, InvalidArgument)
    with pytest.raises(InvalidArgument) as caught:
        handle.result(5)
    assert (caught.value.reason, caught.value.metadata) == ("TRUNCATED", {"file": "w"})


def test_the_timeout_is_a_total_budget(client: BuilderClient, daemon: ScriptedBuilderServer) -> None:
    daemon.operations.done = False
    handle = client.build("org/model", "tiny")
    with pytest.raises(TimeoutError, match="it goes on"):
        handle.result(timeout=0.3)
    assert not handle.done
    assert (handle.status().stage, handle.status().fraction) == ("converting", 0.5)
    handle.cancel()
    assert daemon.operations.cancelled == [handle.name]
    daemon.operations.done = True
    assert handle.done


def test_a_build_is_found_again_by_name(client: BuilderClient) -> None:
    handle = client.build("org/model", "tiny")
    assert client.build_handle(handle.name).result(5).engine == "tiny"
    with pytest.raises(NotFound):
        client.build_handle("operations/none")


def test_validate_only_estimates(client: BuilderClient) -> None:
    handle = client.build("org/model", "tiny", validate_only=True)
    estimate = handle.status().estimate
    assert estimate is not None
    assert estimate.memory_bytes == 1 << 30
    assert list(handle.watch()) == []
    with pytest.raises(FailedPrecondition, match="only validated"):
        handle.result()


def test_engines_and_aliases(client: BuilderClient) -> None:
    assert client.set_alias("tiny", "prod", 1).id == "prod"
    assert [engine.id for engine in client.engines()] == ["tiny"]
    assert [alias.version for alias in client.aliases("tiny")] == [1]
    client.delete_alias("tiny", "prod")
    with pytest.raises(NotFound):
        client.delete_alias("tiny", "prod")
    assert client.delete_version("tiny@1").number == 1
    assert [version.number for version in client.versions("tiny")] == [1]


def test_verify_names_what_is_wrong(client: BuilderClient, daemon: ScriptedBuilderServer) -> None:
    assert client.verify("tiny").intact
    daemon.builder.bad_files = True
    result = client.verify("tiny@1")
    assert (result.intact, result.problems[0].path) == (False, "graph.json")


def test_download_writes_and_checks_files(client: BuilderClient, daemon: ScriptedBuilderServer, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    client.download("tiny", tmp_path / "a", progress=lambda done, total: seen.append((done, total)))
    assert {path: (tmp_path / "a" / path).read_bytes() for path in FILES} == FILES
    assert seen[-1] == (3002, 3002)
    daemon.builder.bad_files = True
    with pytest.raises(DataLoss, match="did not arrive"):
        client.download("tiny", tmp_path / "b")
    assert list((tmp_path / "b").iterdir()) == []


def _chunk(path: str, data: bytes = b"x", **fields: object) -> builder_pb2.FileChunk:
    return builder_pb2.FileChunk(**{"path": path, "data": data, "size_bytes": len(data), **fields})


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        ([_chunk("../out", digest="a:b")], "BAD_FILE_NAME"),
        ([_chunk("/etc/out", digest="a:b")], "BAD_FILE_NAME"),
        ([_chunk("a\\b", digest="a:b")], "BAD_FILE_NAME"),
        ([_chunk("weights/w", digest="a:b")], "DIGEST_MISMATCH"),
        ([_chunk("weights/w")], "DIGEST_MISMATCH"),  # no digest at all
        ([_chunk("weights/w", size_bytes=9)], "INCOMPLETE_FILE"),
        ([_chunk("weights/w", size_bytes=9), _chunk("weights/w", offset=5, size_bytes=9)], "BAD_PIECE"),
        ([_chunk("weights/w", data=b"xyz", size_bytes=2)], "BAD_PIECE"),
        ([_chunk("weights/w", size_bytes=9), _chunk("other", digest="a:b")], "INCOMPLETE_FILE"),
        ([], "INCOMPLETE_DOWNLOAD"),
    ],
)
def test_a_bad_download_leaves_nothing_behind(
    client: BuilderClient,
    daemon: ScriptedBuilderServer,
    tmp_path: Path,
    chunks: list[builder_pb2.FileChunk],
    reason: str,
) -> None:
    daemon.builder.chunks = chunks
    with pytest.raises(DataLoss) as caught:
        client.download("tiny", tmp_path / "a" / "b")
    assert caught.value.reason == reason
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_link_in_the_directory_does_not_lead_a_download_out(client: BuilderClient, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "weights").symlink_to(tmp_path / "out")
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "in" / "engine.json").symlink_to(tmp_path / "precious")
    with pytest.raises(FailedPrecondition, match="is not empty"):
        client.download("tiny", tmp_path / "in")
    chunk = _chunk("weights/w", digest="a:b")
    with pytest.raises(FailedPrecondition, match="is a link out of"):
        write_files([chunk], tmp_path / "in")
    assert list((tmp_path / "out").iterdir()) == []
    assert (tmp_path / "precious").read_text() == "mine"


def test_two_versions_are_never_mixed_in_a_directory(client: BuilderClient, tmp_path: Path) -> None:
    client.download("tiny", tmp_path / "a")
    with pytest.raises(FailedPrecondition) as caught:
        client.download("tiny@1", tmp_path / "a")
    assert caught.value.reason == "DIRECTORY_NOT_EMPTY"
    assert {path: (tmp_path / "a" / path).read_bytes() for path in FILES} == FILES


def test_garbage_is_collected(client: BuilderClient) -> None:
    told, done = client.collect_garbage(validate_only=True), client.collect_garbage()
    assert (told.evicted_versions, done.evicted_versions) == ((), ("engines/tiny/versions/3",))
    assert (done.removed_blobs, done.freed_bytes, done.used_bytes, done.quota_bytes) == (1, 1 << 20, 3 << 20, 4 << 20)


def test_priority_travels_and_is_absent_by_default(client: BuilderClient, daemon: ScriptedBuilderServer) -> None:
    for priority in (None, 0.0, 0.9):
        client.build("org/model", "tiny", priority=priority)
    found = [request.priority if request.HasField("priority") else None for request in daemon.builder.requests]
    assert found == [None, 0.0, 0.9]


def test_a_version_tells_its_use_source_and_facts(client: BuilderClient) -> None:
    version = client.version("tiny")
    assert version.last_use_time == datetime.fromtimestamp(2000, UTC)
    assert version.source is not None
    assert version.source.location == "/models/tiny"
    assert version.build_facts["python"] == "3.11"


@pytest.mark.parametrize("ref", ["tiny@", "tiny@b@c", "tiny@" + "9" * 5000, "tiny@\u0663", "Tiny", "tiny@UPPER", ""])
def test_what_is_no_version_is_refused_before_it_travels(client: BuilderClient, ref: str) -> None:
    with pytest.raises(InvalidArgument, match="is not an engine"):
        client.version(ref)


def test_nothing_listens(unused_tcp_port: int) -> None:
    with (
        BuilderClient(f"127.0.0.1:{unused_tcp_port}") as client,
        pytest.raises(Unavailable, match="start one with `enginehouse builder`"),
    ):
        client.build("org/model", "tiny")


def test_the_wrong_daemon_is_told_apart(server: ScriptedServer) -> None:
    with (
        BuilderClient(server.target) as client,
        pytest.raises(NotImplementedError, match="is not an Enginehouse builder daemon"),
    ):
        client.version("tiny")


def test_unknown_options_are_named(client: BuilderClient) -> None:
    with pytest.raises(TypeError, match="max_batch"):
        client.build("org/model", "tiny", max_batch=3)
    with pytest.raises(ValueError, match="targets must be one of torch, tensorrt, tensorrt_rtx"):
        client.build("org/model", "tiny", targets=["cuda"])


def test_llm_builds_loads_and_generates(server: ScriptedServer, daemon: ScriptedBuilderServer, tmp_path: Path) -> None:
    keywords = {"max_seq_len": 64, "dtype": "float32", "engine_id": "mine", "use_tqdm": False}
    with LLM("org/model", target=server.target, builder=daemon.target, **keywords) as llm:
        assert llm.model.engine_version == "engines/mine/versions/1"
        output = llm.generate("echo", SamplingParams(max_tokens=2), use_tqdm=False)
        assert output.outputs[0].text == " t0 t1"
        assert server.inference.starts[0].model == "mine"
        with pytest.raises(NotFound):  # the scripted builder has the files of "tiny" alone
            llm.save(tmp_path / "saved")


def test_llm_uses_a_model_that_serves_the_engine_already(server: ScriptedServer, daemon: ScriptedBuilderServer) -> None:
    for _ in range(2):
        with LLM("org/tiny", target=server.target, builder=daemon.target) as llm:
            assert llm.model.name == "tiny"
    assert server.models.loads == []
    assert [request.engine_id for request in daemon.builder.requests] == ["tiny", "tiny"]


def test_llm_raises_the_builds_error(server: ScriptedServer, daemon: ScriptedBuilderServer) -> None:
    with pytest.raises(InvalidArgument, match="truncated"):
        LLM("org/model", target=server.target, builder=daemon.target, engine_id="bad", use_tqdm=False)
    assert server.models.loads == []
