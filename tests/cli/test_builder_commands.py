"""`enginehouse build|builds|engines` against a scripted builder over real sockets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.client.scripted_builder import FILES, ScriptedBuilderServer


def test_build_shows_stages_and_what_to_do_next(at_builder: Run) -> None:
    done = at_builder("build", "org/model", "--engine", "tiny")
    assert done.code == 0
    assert [line for line in done.err.splitlines() if line.endswith("...")] == [
        "fetching ...",
        "converting ...",
        "publishing ...",
    ]
    assert "warning: dtype is a guess" in done.err
    assert "Built tiny@1 (2.9 KiB)" in done.out
    assert "enginehouse models load tiny@1" in done.out


def test_build_sends_its_options(at_builder: Run, builder: ScriptedBuilderServer) -> None:
    options = ("--dtype", "float32", "--target", "torch", "--target", "tensorrt-rtx", "--alias", "prod", "--force")
    more = ("--label", "a=b", "--max-seq-len", "64", "--no-verify", "--weights", "dummy", "--revision", "v1")
    assert at_builder("build", "org/My-Model", *options, *more, "--json").json["version"]["name"]
    request = builder.builder.requests[0]
    assert request.engine_id == "my-model"
    assert (len(request.targets), request.alias, request.force, request.verify.off) == (2, "prod", True, True)
    assert (request.build_config.max_seq_len, dict(request.labels)) == (64, {"a": "b"})


def test_build_that_fails_says_why(at_builder: Run) -> None:
    done = at_builder("build", "org/model", "--engine", "bad")
    assert done.code == 1
    assert done.err.splitlines()[-1] == "Error: The checkpoint is truncated; fetch it again."


def test_errors_as_json(at_builder: Run) -> None:
    done = at_builder("build", "org/model", "--engine", "bad", "--json")
    assert (done.code, done.out) == (1, "")
    error = json.loads(done.err)["error"]
    assert (error["code"], error["reason"], error["metadata"]) == ("INVALID_ARGUMENT", "TRUNCATED", {"file": "w"})


def test_a_path_outside_the_roots(at_builder: Run) -> None:
    done = at_builder("build", "/secret", "--engine", "tiny")
    assert (done.code, done.err) == (1, "Error: Checkpoints are read under /models only.\n")


def test_detach_and_watch(at_builder: Run) -> None:
    started = at_builder("build", "org/model", "--engine", "tiny", "--detach", "--json").json["name"]
    short = started.removeprefix("operations/")
    assert "Built tiny@1" in at_builder("builds", "watch", short).out
    lines = at_builder("builds", "watch", started, "--json").out.splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == list(range(1, 9))
    assert json.loads(lines[-1])["kind"] == "BuildFinished"


def test_builds(at_builder: Run, builder: ScriptedBuilderServer) -> None:
    assert at_builder("builds", "list").out == "There are no builds.\n"
    at_builder("build", "org/model", "--engine", "bad")
    assert "failed" in at_builder("builds", "list").out
    name = at_builder("builds", "list", "--json").json[0]["name"]
    assert "The checkpoint is truncated" in at_builder("builds", "show", name).out
    assert at_builder("builds", "show", name, "--json").json["error"]["reason"] == "TRUNCATED"
    assert "had ended already: failed" in at_builder("builds", "cancel", name).out
    assert builder.operations.cancelled == [name]
    assert at_builder("builds", "show", "none").err == "Error: There is no operation operations/none.\n"


def test_validate_only(at_builder: Run) -> None:
    assert "Estimate: 1.0 GiB of memory" in at_builder("build", "org/model", "--validate-only").out


def test_engines(at_builder: Run) -> None:
    assert "tiny" in at_builder("engines", "list").out
    assert at_builder("engines", "list", "--json").json[0]["name"] == "engines/tiny"
    assert "tiny@1" in at_builder("engines", "list", "tiny").out
    shown = at_builder("engines", "show", "tiny").out
    assert "torch (executed)" in shown
    assert "max_seq_len 128" in shown
    assert at_builder("engines", "show", "other").code == 1
    assert at_builder("engines", "delete", "tiny@1", "--yes").out == "Deleted tiny@1\n"
    assert at_builder("engines", "delete", "tiny", "--yes").code == 2


def test_show_verbose_has_facts_libraries_and_files(at_builder: Run) -> None:
    plain, verbose = at_builder("engines", "show", "tiny").out, at_builder("engines", "show", "tiny", "--verbose").out
    assert "last used" in plain
    assert "/models/tiny" in plain
    assert "rank0.safetensors" not in plain
    assert verbose.startswith(plain)
    for text in ("python", "3.11", "torch", "weights/rank0.safetensors", "sha256:"):
        assert text in verbose


def test_diff_tells_what_differs_by_its_exit_code_too(at_builder: Run) -> None:
    same = at_builder("engines", "diff", "tiny@1", "tiny@3")  # only timings differ
    assert (same.code, same.out) == (0, "tiny@1 and tiny@3 are the same.\n")
    other = at_builder("engines", "diff", "tiny@1", "tiny@2")
    assert other.code == 1
    rows = [line.split() for line in other.out.splitlines()]
    assert ["limits.max_seq_len", "128", "64"] in rows
    assert ["build.python", "3.11", "3.12"] in rows
    assert "file." not in other.out
    as_json = at_builder("engines", "diff", "tiny@1", "tiny@2", "--json")
    assert as_json.code == 1
    assert {"field": "limits.max_seq_len", "a": "128", "b": "64"} in as_json.json["differences"]
    assert at_builder("engines", "diff", "tiny@1", "tiny@3", "--json").json["differences"] == []
    assert "No such engine" in at_builder("engines", "diff", "tiny@1", "none@2").err


def test_gc_tells_each_version(at_builder: Run) -> None:
    done = at_builder("engines", "gc")
    assert done.code == 0
    assert "tiny@2  removed" in done.out
    assert "tiny@3  deleted for the quota" in done.out
    assert "1.0 MiB freed; the store holds 3.0 MiB of a quota of 4.0 MiB." in done.out
    dry = at_builder("engines", "gc", "--dry-run")
    assert "tiny@2  would be removed" in dry.out
    assert "tiny@3" not in dry.out
    assert at_builder("engines", "gc", "--json").json["freed_bytes"] == 1 << 20


def test_a_build_that_shares_anothers_says_so(at_builder: Run, builder: ScriptedBuilderServer) -> None:
    builder.operations.metadata = {"shares_operation": "operations/abc", "priority": 0.7}
    assert "this one takes the result of abc" in at_builder("build", "org/model", "--engine", "tiny").err
    name = at_builder("builds", "list", "--json").json[0]["name"]
    assert "(as abc)" in at_builder("builds", "list").out
    shown = [line.split() for line in at_builder("builds", "show", name).out.splitlines()]
    assert ["as", "build", "abc"] in shown
    assert ["priority", "0.7"] in shown


def test_validate_only_names_the_version_that_is_there(at_builder: Run, builder: ScriptedBuilderServer) -> None:
    builder.builder.existing = True
    shown = at_builder("build", "org/model", "--validate-only")
    assert "tiny@1 has its key already" in shown.out
    assert "warning: a note" in shown.err
    as_json = at_builder("build", "org/model", "--validate-only", "--json").json
    assert (as_json["existing"], as_json["build_key"]) == ("engines/tiny/versions/1", "k")


def test_priority(at_builder: Run, builder: ScriptedBuilderServer) -> None:
    assert at_builder("build", "org/model", "--priority", "0.9", "--detach").code == 0
    assert builder.builder.requests[0].priority == 0.9
    assert at_builder("build", "org/model", "--priority", "2").code == 2


def test_builds_are_listed_up_to_a_limit(at_builder: Run) -> None:
    for number in range(3):
        at_builder("build", "org/model", "--engine", f"e{number}", "--detach")
    assert len(at_builder("builds", "list", "--json").json) == 3
    some = at_builder("builds", "list", "--limit", "2")
    assert len(some.out.splitlines()) == 4  # two and the head
    assert "newest 2" in some.err
    assert len(at_builder("builds", "list", "--limit", "0", "--json").json) == 3


def test_aliases(at_builder: Run) -> None:
    assert at_builder("engines", "alias", "tiny").out == "tiny has no aliases.\n"
    assert at_builder("engines", "alias", "tiny", "prod", "1").out == "tiny@prod is now version 1\n"
    assert "prod" in at_builder("engines", "alias", "tiny").out
    assert at_builder("engines", "alias", "tiny", "prod").code == 2
    assert at_builder("engines", "alias", "tiny", "prod", "--delete").code == 0


def test_verify_and_download(at_builder: Run, builder: ScriptedBuilderServer, tmp_path: Path) -> None:
    assert "is intact" in at_builder("engines", "verify", "tiny@1").out
    assert at_builder("engines", "download", "tiny", str(tmp_path)).code == 0
    assert (tmp_path / "engine.json").read_bytes() == FILES["engine.json"]
    builder.builder.bad_files = True
    damaged = at_builder("engines", "verify", "tiny@1")
    assert (damaged.code, "graph.json (digest)" in damaged.err) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("build",),
        ("build", "org/model", "--label", "x"),
        ("build", "org/model", "--dtype", "float99"),
        ("build", "org/model", "--target", "onnx"),
        ("builds", "list", "--bogus"),
        ("nonsense",),
    ],
)
def test_wrong_usage_exits_with_2_and_no_traceback(at_builder: Run, arguments: tuple[str, ...]) -> None:
    done = at_builder(*arguments)
    assert done.code == 2
    assert "Error" in done.err
    assert "Traceback" not in done.err


def test_nothing_listens(run: Run, unused_tcp_port: int) -> None:
    done = run("engines", "list", "--builder", f"127.0.0.1:{unused_tcp_port}")
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert "start one with `enginehouse builder`" in done.err
