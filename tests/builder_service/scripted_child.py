"""A build's child that does what the label `do` says, in the place of `builder_service.child`.

Run as a program: reads a BuildJob on standard input, writes ChildEvents on standard output.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from builder_service.job import (
    BuildJob,
    ErrorEvent,
    KeyEvent,
    LogEvent,
    ProgressEvent,
    ResultEvent,
    Stage,
    StageEvent,
)
from engine_store import EngineStore
from tests.engine_store.writing import fill, manifest


def say(event: msgspec.Struct) -> None:
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()


def publish(job: BuildJob, key: str) -> None:
    """Every stage once, and a real version in the store."""
    for stage in (Stage.FETCHING, Stage.CONVERTING, Stage.CAPTURING, Stage.COMPILING, Stage.VERIFYING):
        say(StageEvent(stage))
        say(ProgressEvent(1, 2, "tensors"))
        say(ProgressEvent(2, 2, "tensors"))
    say(KeyEvent(key))
    say(LogEvent("info", "all is well"))
    say(StageEvent(Stage.PUBLISHING))
    store = EngineStore(job.store)
    with store.stage() as staging:
        fill(staging.path, key, 1 << 21)
        record = msgspec.structs.replace(manifest(job.engine_id, key), labels=job.labels)
        published = staging.publish(record, force=job.force)
    say(ResultEvent(job.engine_id, published.manifest.version, published.reused))


def check(job: BuildJob) -> None:
    """What the real child says of `validate_only`."""
    key = job.labels.get("key", "k1")
    existing = EngineStore(job.store).find(job.engine_id, key)
    say(KeyEvent(key, existing.version if existing else 0))
    say(LogEvent("warning", "a note"))
    say(ResultEvent(job.engine_id, existing.version if existing else 0, reused=existing is not None))


def held(job: BuildJob) -> None:
    """Tells its key where it has one, and publishes once there is a file "go"."""
    if key := job.labels.get("key", ""):
        existing = EngineStore(job.store).find(job.engine_id, key)
        say(KeyEvent(key, existing.version if existing else 0))
    say(StageEvent(Stage.CONVERTING))
    while not (Path(job.cache) / "go").exists():
        time.sleep(0.01)
    publish(job, key or "k1")


def mute(job: BuildJob) -> None:
    """Publishes, and never says so."""
    say(KeyEvent("k1"))
    say(StageEvent(Stage.PUBLISHING))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with EngineStore(job.store).stage() as staging:
        fill(staging.path, "k1", 1 << 10)
        staging.publish(manifest(job.engine_id, "k1"), force=job.force)
    (Path(job.cache) / "begun").touch()
    time.sleep(300)


def talk(job: BuildJob) -> None:
    """More log lines than anybody keeps, then its version."""
    for number in range(3000):
        say(LogEvent("info", f"{number} " + "x" * 500))
    publish(job, "k1")


def still(job: BuildJob) -> None:
    """One stage that is silent for a while, one that tells the same thing for a while."""
    say(StageEvent(Stage.CAPTURING))
    time.sleep(2.5)
    say(StageEvent(Stage.VERIFYING))
    for done in (1, 2):
        say(ProgressEvent(done, 2, "tokens"))
        time.sleep(1.5)
    publish(job, "k1")


def hang_in_staging(job: BuildJob) -> None:
    """Holds a staging directory and a grandchild, and ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with EngineStore(job.store).stage() as staging:
        (staging.path / "half").write_bytes(b"x" * 4096)
        sleeper = subprocess.Popen(["sleep", "300"])
        say(StageEvent(Stage.CONVERTING))
        say(LogEvent("info", f"grandchild {sleeper.pid}"))
        time.sleep(300)


def deaf(job: BuildJob) -> None:
    """Stays in the stage of its label and ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(KeyEvent("k1"))
    say(StageEvent(Stage(job.labels["stage"])))
    say(LogEvent("info", "here"))
    time.sleep(300)


def leave(job: BuildJob) -> None:
    """Is killed, and leaves a process of its group that holds its pipes."""
    say(StageEvent(Stage.CONVERTING))
    subprocess.Popen(["sleep", "30"])
    os.kill(os.getpid(), int(job.labels["signal"]))


def hog(job: BuildJob) -> None:
    say(StageEvent(Stage.CONVERTING))
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20)) * 8)
        time.sleep(0.02)


def crash(job: BuildJob) -> None:
    say(StageEvent(Stage.CONVERTING))
    print("the last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def refuse(job: BuildJob) -> None:
    say(ErrorEvent(9, "UNSUPPORTED_ARCHITECTURE", "No such architecture here.", {"architecture": "Foo"}))
    sys.exit(1)


def shout(job: BuildJob) -> None:
    """Says more in one line than the protocol allows, and would say more."""
    say(LogEvent("info", "x" * (8 << 20)))
    say(ResultEvent(job.engine_id, 1, reused=True))


def chatter(job: BuildJob) -> None:
    """Prints what is no event, goes backwards, and floods progress; then succeeds and lingers."""
    print("library noise")
    say(StageEvent(Stage.CAPTURING))
    say(StageEvent(Stage.FETCHING))
    say(StageEvent(Stage.SUCCEEDED))
    for done in range(20_000):
        say(ProgressEvent(done, 20_000, "bytes"))
    say(ResultEvent(job.engine_id, 1, reused=True))
    time.sleep(60)  # a slow way out, which nobody waits for


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=BuildJob)
    what = job.labels.get("do", "publish")
    if job.validate_only and what == "publish":
        return check(job)
    if what == "publish":
        publish(job, job.labels.get("key", "k1"))
    elif what == "exit":
        sys.exit(3)
    elif what == "once":  # hangs the first time, succeeds when it is begun again
        marker = Path(job.cache) / "begun"
        if not marker.exists():
            marker.touch()
            say(StageEvent(Stage.CONVERTING))
            time.sleep(300)
        publish(job, "k1")
    else:
        {
            "held": held,
            "mute": mute,
            "talk": talk,
            "still": still,
            "deaf": deaf,
            "hang": hang_in_staging,
            "leave": leave,
            "hog": hog,
            "crash": crash,
            "refuse": refuse,
            "shout": shout,
            "chatter": chatter,
        }[what](job)


if __name__ == "__main__":
    main()
