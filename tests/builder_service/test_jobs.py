from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder_service.events import FINAL, NEXT_STAGES, RUNNING, Finished, Log, Memory, Progress, Started, fraction
from builder_service.job import BuildJob, ErrorEvent, SourceSpec, Stage
from builder_service.jobs import JobStore, State, apply
from enginehouse.errors import AlreadyExists, FailedPrecondition, NotFound, ResourceExhausted

SPEC = BuildJob(engine_id="tiny", store="/s", cache="/c", source=SourceSpec(kind="huggingface", path="/m"))
ERROR = ErrorEvent(13, "X", "x", {})


@pytest.fixture
def jobs(tmp_path: Path):
    store = JobStore(tmp_path / "builds.sqlite", max_queued=3, max_done=2, max_events=50)
    yield store
    store.close()


def _run_to(jobs: JobStore, operation: str, *stages: Stage) -> None:
    for stage in stages:
        jobs.record(operation, Started(stage, fraction(stage), jobs.get(operation).state.attempt))


def test_an_accepted_build_is_there_for_the_next_daemon(tmp_path: Path) -> None:
    first = JobStore(tmp_path / "q.sqlite")
    job = first.submit(SPEC, b"request")
    first.close()
    second = JobStore(tmp_path / "q.sqlite")
    assert second.next_queued() == job
    second.close()


def test_acknowledged_means_on_disk(tmp_path: Path, jobs: JobStore) -> None:
    """Another connection sees the build at once, and commits are synchronous."""
    jobs.submit(SPEC, b"request")
    other = sqlite3.connect(tmp_path / "builds.sqlite")
    assert other.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
    other.close()
    assert jobs._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert jobs._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_request_id_names_one_build(jobs: JobStore) -> None:
    job = jobs.submit(SPEC, b"request", "id")
    assert jobs.submit(SPEC, b"request", "id") == job
    with pytest.raises(AlreadyExists) as caught:
        jobs.submit(SPEC, b"another", "id")
    assert caught.value.metadata["operation"] == job.operation
    assert jobs.submit(SPEC, b"request").operation != job.operation
    assert jobs.submit(SPEC, b"request").operation != job.operation


def test_builds_are_taken_in_the_order_they_came_and_know_their_place(jobs: JobStore) -> None:
    submitted = [jobs.submit(SPEC, b"") for _ in range(3)]
    assert [jobs.queue_position(job) for job in submitted] == [0, 1, 2]
    first = jobs.next_queued()
    assert first == submitted[0]
    _run_to(jobs, first.operation, Stage.FETCHING)
    assert jobs.next_queued() == submitted[1]
    assert jobs.queue_position(submitted[1]) == 1
    jobs.record(first.operation, Finished(Stage.SUCCEEDED, version=1))
    assert jobs.queue_position(submitted[1]) == 0


def test_a_full_queue_refuses_with_advice(jobs: JobStore) -> None:
    for _ in range(3):
        jobs.submit(SPEC, b"")
    with pytest.raises(ResourceExhausted) as caught:
        jobs.submit(SPEC, b"")
    assert caught.value.reason == "BUILD_QUEUE_FULL"
    assert caught.value.retry_after


def test_events_are_replayed_from_any_sequence_without_gaps(jobs: JobStore) -> None:
    operation = jobs.submit(SPEC, b"").operation
    _run_to(jobs, operation, Stage.FETCHING)
    for index in range(10):
        jobs.record(operation, Log("info", str(index)))
    assert [stored.sequence for stored in jobs.events_after(operation, 0)] == list(range(1, 12))
    assert [stored.event.text for stored in jobs.events_after(operation, 8)] == ["7", "8", "9"]
    assert jobs.events_after(operation, 11) == []
    assert len(jobs.events_after(operation, 0, limit=4)) == 4


def test_old_events_are_dropped_and_the_newest_stay(jobs: JobStore) -> None:
    operation = jobs.submit(SPEC, b"").operation
    for index in range(120):
        jobs.record(operation, Log("info", str(index)))
    assert [stored.sequence for stored in jobs.events_after(operation, 0)] == list(range(71, 121))


def test_old_finished_builds_are_forgotten_with_their_events(jobs: JobStore) -> None:
    operations = []
    for _ in range(4):
        operations.append(jobs.submit(SPEC, b"").operation)
        _run_to(jobs, operations[-1], Stage.FETCHING)
        jobs.record(operations[-1], Finished(Stage.SUCCEEDED, version=1))
    assert [job.operation for job in jobs.all()] == operations[:1:-1]
    assert jobs._db.execute("SELECT count(DISTINCT job) FROM events").fetchone() == (2,)
    with pytest.raises(NotFound):
        jobs.get(operations[0])


def test_a_lost_build_is_queued_again_and_given_up_the_third_time(jobs: JobStore) -> None:
    operation = jobs.submit(SPEC, b"").operation
    for attempt in (2, 3):
        _run_to(jobs, operation, Stage.FETCHING, Stage.CAPTURING)
        job = jobs.requeue(operation, lost=True)
        assert (job.state.stage, job.state.attempt) == (Stage.QUEUED, attempt)
    _run_to(jobs, operation, Stage.FETCHING)
    job = jobs.requeue(operation, lost=True)
    assert job.state.stage is Stage.FAILED
    assert job.state.error is not None
    assert job.state.error.reason == "BUILD_LOST"


def test_an_orderly_restart_is_no_loss(jobs: JobStore) -> None:
    operation = jobs.submit(SPEC, b"").operation
    for attempt in range(2, 8):
        _run_to(jobs, operation, Stage.FETCHING)
        assert jobs.requeue(operation, lost=False).state.attempt == attempt
    assert [job.operation for job in jobs.all() if not job.state.done] == [operation]


def test_only_a_finished_build_can_be_forgotten(jobs: JobStore) -> None:
    operation = jobs.submit(SPEC, b"").operation
    with pytest.raises(FailedPrecondition):
        jobs.delete(operation)
    jobs.record(operation, Finished(Stage.CANCELLED, error=ERROR))
    jobs.delete(operation)
    with pytest.raises(NotFound):
        jobs.events_after(operation, 0)


@given(st.lists(st.sampled_from(list(Stage)), max_size=12))
def test_only_steps_of_the_table_are_taken(path: list[Stage]) -> None:
    state = State(stage_time=0.0, create_time=0.0)
    for stage in path:
        event = Finished(stage) if stage in FINAL else Started(stage, 0.5, 1)
        if stage in NEXT_STAGES[state.stage]:
            state = apply(state, event, 1.0)
            assert state.stage is stage
        else:
            with pytest.raises(AssertionError):
                apply(state, event, 1.0)
    assert state.done == (state.stage in FINAL) == (state.end_time is not None)


@given(st.lists(st.tuples(st.integers(-5, 200), st.integers(-5, 100)), max_size=20), st.sampled_from(RUNNING))
def test_the_fraction_stays_in_its_stage_and_never_goes_back(steps: list[tuple[int, int]], stage: Stage) -> None:
    state = apply(State(stage_time=0.0, create_time=0.0, stage=Stage.QUEUED), Started(Stage.FETCHING, 0.0, 1), 0.0)
    state = state if stage is Stage.FETCHING else apply(state, Started(stage, fraction(stage), 1), 0.0)
    for done, total in steps:
        later = apply(state, Progress(done, total, "bytes", fraction(stage, done, total)), 1.0)
        assert fraction(stage) <= state.fraction <= later.fraction <= fraction(stage, 1, 1)
        state = later


def test_the_memory_peak_is_kept_over_attempts() -> None:
    state = State(stage_time=0.0, create_time=0.0)
    for peak in (5, 3):
        state = apply(state, Memory(1, peak, 0), 1.0)
    assert state.memory_peak == 5


def test_a_full_disk_is_said_and_leaves_no_transaction_open(tmp_path: Path) -> None:
    jobs = JobStore(tmp_path / "builds.sqlite")
    operation = jobs.submit(SPEC, b"").operation
    pages = jobs._db.execute("PRAGMA page_count").fetchone()[0]
    jobs._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ResourceExhausted) as caught:
        jobs.submit(SPEC, b"x" * 100_000)
    assert caught.value.reason == "DISK_FULL"
    assert not jobs._db.in_transaction
    jobs._db.execute("PRAGMA max_page_count = 100000")
    jobs.submit(SPEC, b"x" * 5000)
    assert jobs.get(operation).state.stage is Stage.QUEUED
    jobs.close()
