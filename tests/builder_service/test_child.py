from __future__ import annotations

import errno
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from builder_service import child as build_child
from builder_service.child import EventWriter
from builder_service.job import (
    BuildJob,
    ChildEvent,
    ErrorEvent,
    LogEvent,
    ProgressEvent,
    ResultEvent,
    SourceSpec,
    Stage,
    StageEvent,
)
from builder_service.queue.memory import anonymous_bytes
from engine_store import EngineStore

DECODER = msgspec.json.Decoder(ChildEvent)


def make_job(tmp_path: Path, path: Path, **fields) -> BuildJob:
    source = SourceSpec(kind="huggingface", path=str(path))
    return BuildJob(
        engine_id="tiny", store=str(tmp_path / "store"), cache=str(tmp_path / "cache"), source=source, **fields
    )


def start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "builder_service.child"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(data: bytes) -> tuple[int, list[ChildEvent], str]:
    child = start()
    out, err = child.communicate(data, timeout=100)
    return child.returncode, [DECODER.decode(line) for line in out.splitlines()], err.decode()


def test_a_build_writes_events_and_the_result_last(make_checkpoint, tmp_path):
    job = make_job(tmp_path, make_checkpoint())
    code, events, _ = run(msgspec.json.encode(job))
    assert code == 0
    assert events[-1] == ResultEvent("tiny", 1, reused=False)
    assert events[0] == StageEvent(Stage.FETCHING)
    assert EngineStore(tmp_path / "store").get("tiny", 1).verify_report.status == "passed"


def test_a_typed_error_is_the_last_event(tmp_path):
    code, events, _ = run(msgspec.json.encode(make_job(tmp_path, tmp_path / "nowhere")))
    assert code == 1
    error = events[-1]
    assert isinstance(error, ErrorEvent)
    assert (error.code, error.reason) == (5, "SOURCE_NOT_FOUND")
    assert error.metadata == {"path": str(tmp_path / "nowhere")}


@pytest.mark.parametrize("data", [b"", b"not json", b'{"engine_id": "x", "unknown": 1}'])
def test_a_job_that_cannot_be_read_is_an_error(data):
    code, events, _ = run(data)
    assert code == 1
    assert events[-1].reason == "BAD_JOB"


def test_an_internal_error_shows_nothing_of_the_inside(make_checkpoint, tmp_path):
    (tmp_path / "store").write_text("a file where the store should be")
    code, events, err = run(msgspec.json.encode(make_job(tmp_path, make_checkpoint(), verify="off")))
    assert code == 1
    assert events[-1].code == 13
    assert str(tmp_path) not in events[-1].message
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EIO, "bad", "/secret/path"), "BUILD_IO"),
        (OSError(errno.ENOSPC, "full", "/secret/path"), "DISK_FULL"),
        (MemoryError(), "OUT_OF_MEMORY"),
        (OSError("/secret/path"), "BUILD_FAILED"),
        (KeyError("/secret/path"), "BUILD_FAILED"),
    ],
)
def test_a_failure_of_the_machine_is_typed_and_tells_no_path(error, reason):
    typed = build_child.typed(error)
    assert typed.reason == reason
    assert "secret" not in typed.message + str(typed.metadata)


def test_what_libraries_print_does_not_reach_the_events(tmp_path):
    code = (
        "import builder_service.child as child, os\n"
        "stream = child._take_stdout()\n"
        "print('from python', flush=True); os.write(1, b'from C\\n')\n"
        "stream.write(b'event\\n'); stream.flush()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"event\n"
    assert b"from python" in done.stderr
    assert b"from C" in done.stderr


def test_sigterm_leaves_nothing_staged(make_checkpoint, tmp_path):
    directory = make_checkpoint(hidden_size=480, intermediate_size=4000, num_hidden_layers=8)
    child = start()
    child.stdin.write(msgspec.json.encode(make_job(tmp_path, directory)))
    child.stdin.close()
    for line in child.stdout:
        if DECODER.decode(line) == StageEvent(Stage.CONVERTING):
            break
    assert list((tmp_path / "store" / "staging").iterdir())
    child.terminate()
    assert child.wait(timeout=30) == 128 + signal.SIGTERM
    child.stdout.close()
    child.stderr.close()
    assert not list((tmp_path / "store" / "staging").iterdir())
    assert EngineStore(tmp_path / "store").list_engines() == []


@pytest.mark.long
def test_memory_grows_by_a_tensor_and_not_by_the_model(make_checkpoint, tmp_path):
    directory = make_checkpoint(hidden_size=1536, intermediate_size=4096, num_hidden_layers=8, vocab_size=4000)
    model, largest = (directory / "model.safetensors").stat().st_size, 1536 * 4096 * 4
    child = start()
    child.stdin.write(msgspec.json.encode(make_job(tmp_path, directory)))
    child.stdin.close()
    peaks, stage = dict.fromkeys(Stage, 0), Stage.FETCHING
    for line in child.stdout:
        event = DECODER.decode(line)
        stage = event.stage if isinstance(event, StageEvent) else stage
        peaks[stage] = max(peaks[stage], anonymous_bytes(child.pid))
    assert child.wait() == 0
    child.stdout.close()
    child.stderr.close()
    assert model > 600e6
    assert peaks[Stage.CONVERTING] - peaks[Stage.FETCHING] < 3 * largest
    assert peaks[Stage.VERIFYING] - peaks[Stage.FETCHING] < 0.6 * model


@pytest.mark.skipif(sys.platform != "linux", reason="uses prctl")
def test_the_child_dies_with_its_parent(tmp_path):
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'builder_service.child'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    deadline = time.monotonic() + 20
    while b"builder_service.child" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1.0)  # until it has asked for the signal
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="uses /proc")
def test_the_kernel_takes_a_child_before_its_daemon_when_memory_is_out():
    child = start()
    try:
        deadline = time.monotonic() + 20
        while Path(f"/proc/{child.pid}/oom_score_adj").read_text().strip() != "1000":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert Path("/proc/self/oom_score_adj").read_text().strip() != "1000"
    finally:
        child.communicate(b"", timeout=30)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def written(stream: io.BytesIO) -> list[ChildEvent]:
    return [DECODER.decode(line) for line in stream.getvalue().splitlines()]


def test_progress_is_thinned_but_its_end_is_not(clock):
    stream = io.BytesIO()
    writer = EventWriter(stream, clock)
    for done in range(1001):
        clock.now += 0.001
        writer.report(ProgressEvent(done, 1000, "bytes"))
    events = written(stream)
    assert 9 <= len(events) <= 12
    assert events[-1] == ProgressEvent(1000, 1000, "bytes")


def test_silence_is_filled_with_the_current_progress(clock):
    stream = io.BytesIO()
    writer = EventWriter(stream, clock)
    clock.now = 1.0
    writer.report(ProgressEvent(1, 10, "bytes"))
    clock.now = 1.05
    writer.report(ProgressEvent(2, 10, "bytes"))
    writer.beat()
    assert len(written(stream)) == 1
    clock.now = 2.1
    writer.beat()
    writer.beat()
    assert written(stream)[1:] == [ProgressEvent(2, 10, "bytes")]


def test_a_new_stage_ends_the_old_progress(clock):
    stream = io.BytesIO()
    writer = EventWriter(stream, clock)
    clock.now = 1.0
    writer.report(ProgressEvent(1, 10, "bytes"))
    writer.report(StageEvent(Stage.CAPTURING))
    clock.now = 9.0
    writer.beat()
    assert len(written(stream)) == 2


def test_what_a_child_says_is_short_and_valid_text_whatever_the_checkpoint_holds(make_checkpoint, tmp_path):
    checkpoint = make_checkpoint()
    (checkpoint / "config.json").write_text(json.dumps({"architectures": ["X" * 3_000_000]}))
    (checkpoint / "stray-\udcff.bin").touch()
    code, events, _ = run(msgspec.json.encode(make_job(tmp_path, checkpoint)))
    assert code == 1
    assert events[-1].reason == "UNSUPPORTED_ARCHITECTURE"
    assert len(events[-1].message) < 1000
    assert any(isinstance(event, LogEvent) and event.text.startswith("stray-?") for event in events)
