from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder_service.job import BuildJob, ErrorEvent, SourceSpec, Stage
from builder_service.queue.events import FINAL, NEXT_STAGES, RUNNING, Finished, Log, Memory, Progress, Started, fraction
from builder_service.queue.jobs import JobStore
from builder_service.queue.state import State, apply
from enginehouse.errors import AlreadyExists, FailedPrecondition, NotFound, ResourceExhausted


def spec(engine: str = "tiny", **fields: object) -> BuildJob:
    source = SourceSpec(kind="huggingface", path="/m")
    return BuildJob(engine_id=engine, store="/s", cache="/c", source=source, **fields)


SPEC = spec()
ERROR = ErrorEvent(13, "X", "x", {})


@pytest.fixture
def jobs(tmp_path: Path):
    store = JobStore(tmp_path / "builds.sqlite", max_queued=3, max_done=2, max_samples=300, max_logs=20)
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
    assert [build.operation for build in second.waiting()] == [job.operation]
    assert second.get(job.operation) == job
    second.close()


def test_acknowledged_means_on_disk(tmp_path: Path, jobs: JobStore) -> None:
    """Another connection sees the build at once, and commits are synchronous."""
    jobs.submit(SPEC, b"request")
    other = sqlite3.connect(tmp_path / "builds.sqlite")
    assert other.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
    other.close()
    assert jobs.database.connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert jobs.database.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_request_id_names_one_build(jobs: JobStore) -> None:
    job = jobs.submit(SPEC, b"request", "id")
    assert jobs.submit(SPEC, b"request", "id") == job
    with pytest.raises(AlreadyExists) as caught:
        jobs.submit(SPEC, b"another", "id")
    assert caught.value.metadata["operation"] == job.operation
    assert jobs.submit(SPEC, b"request").operation != job.operation
    assert jobs.submit(SPEC, b"request").operation != job.operation


def _waiting(jobs: JobStore) -> list[str]:
    return [build.operation for build in jobs.waiting()]


def test_builds_are_taken_in_the_order_they_came_and_know_their_place(jobs: JobStore) -> None:
    submitted = [jobs.submit(spec(engine), b"") for engine in "abc"]
    assert [jobs.queue_position(job) for job in submitted] == [0, 1, 2]
    assert _waiting(jobs) == [job.operation for job in submitted]
    first = submitted[0]
    _run_to(jobs, first.operation, Stage.FETCHING)
    assert _waiting(jobs)[0] == submitted[1].operation
    assert jobs.queue_position(submitted[1]) == 1
    jobs.record(first.operation, Finished(Stage.SUCCEEDED, version=1))
    assert jobs.queue_position(submitted[1]) == 0


def test_a_higher_priority_comes_first_and_an_older_build_among_equals(jobs: JobStore) -> None:
    low, first, second = (jobs.submit(spec(e), b"", priority=p) for e, p in (("a", 0.1), ("b", 0.9), ("c", 0.9)))
    assert _waiting(jobs) == [first.operation, second.operation, low.operation]
    assert [jobs.queue_position(job) for job in (low, first, second)] == [2, 0, 1]
    assert jobs.get(low.operation).priority == 0.1


def test_a_clock_that_is_set_back_lets_nobody_in_before_others(tmp_path: Path) -> None:
    times = [5000.0, 1000.0, 900.0]
    jobs = JobStore(tmp_path / "q.sqlite", clock=lambda: times[0])
    submitted = [jobs.submit(SPEC, b"").operation]
    times.pop(0)
    submitted.append(jobs.submit(SPEC, b"").operation)
    jobs.close()
    times.pop(0)
    again = JobStore(tmp_path / "q.sqlite", clock=lambda: times[0])
    submitted.append(again.submit(SPEC, b"").operation)
    assert _waiting(again) == submitted
    assert again.get(submitted[1]).state.create_time == 1000.0
    again.close()


def test_a_full_queue_refuses_with_advice_and_identical_builds_count_once(jobs: JobStore) -> None:
    for engine in "abc":
        jobs.submit(spec(engine), b"")
    for _ in range(27):
        jobs.submit(spec("a", alias="prod"), b"")
    for refused in (spec("d"), spec("a")):
        with pytest.raises(ResourceExhausted) as caught:
            jobs.submit(refused, b"")
        assert caught.value.reason == "BUILD_QUEUE_FULL"
        assert caught.value.retry_after


def test_forced_builds_each_take_a_place(jobs: JobStore) -> None:
    for _ in range(3):
        jobs.submit(spec(force=True), b"")
    with pytest.raises(ResourceExhausted):
        jobs.submit(spec(force=True), b"")


def test_events_are_replayed_from_any_sequence_without_gaps(jobs: JobStore) -> None:
    operation = jobs.submit(SPEC, b"").operation
    _run_to(jobs, operation, Stage.FETCHING)
    for index in range(10):
        jobs.record(operation, Log("info", str(index)))
    assert [stored.sequence for stored in jobs.events_after(operation, 0)] == list(range(1, 12))
    assert [stored.event.text for stored in jobs.events_after(operation, 8)] == ["7", "8", "9"]
    assert jobs.events_after(operation, 11) == []
    assert len(jobs.events_after(operation, 0, limit=4)) == 4


def test_only_superseded_samples_are_thinned_the_oldest_first(jobs: JobStore) -> None:
    """Stages, log lines and the end stay as long as the build; sequences keep increasing."""
    operation = jobs.submit(SPEC, b"").operation
    _run_to(jobs, operation, Stage.FETCHING)
    jobs.record(operation, Log("info", "early"))
    for index in range(1200):
        jobs.record(operation, Progress(index, 1200, "bytes", 0.0) if index % 2 else Memory(index, index, 0))
    jobs.record(operation, Finished(Stage.SUCCEEDED, version=1))
    stored = jobs.events_after(operation, 0, 10_000)
    assert [type(each.event) for each in (*stored[:2], stored[-1])] == [Started, Log, Finished]
    samples = [each.sequence for each in stored[2:-1]]
    assert samples == list(range(samples[0], 1203))
    assert 300 <= len(samples) <= 300 + 256


def test_log_lines_are_bounded_and_the_last_tells_how_many_were_dropped(jobs: JobStore) -> None:
    operation = jobs.submit(SPEC, b"").operation
    for index in range(50):
        jobs.record(operation, Log("info", str(index)))
    assert len(jobs.events_after(operation, 0)) == 20
    jobs.record(operation, Finished(Stage.CANCELLED, error=ERROR))
    *kept, last, end = jobs.events_after(operation, 0)
    assert [each.event.text for each in kept] == [str(index) for index in range(20)]
    assert last.event == Log("warning", "30 more log lines were dropped.")
    assert isinstance(end.event, Finished)
    assert [each.sequence for each in jobs.events_after(operation, 0)] == list(range(1, 23))


def test_old_finished_builds_are_forgotten_with_their_events(jobs: JobStore) -> None:
    operations = []
    for _ in range(4):
        operations.append(jobs.submit(SPEC, b"").operation)
        _run_to(jobs, operations[-1], Stage.FETCHING)
        jobs.record(operations[-1], Finished(Stage.SUCCEEDED, version=1))
    assert [job.operation for job in jobs.page(10)] == operations[:1:-1]
    assert jobs.database.connection.execute("SELECT count(DISTINCT job) FROM events").fetchone() == (2,)
    with pytest.raises(NotFound):
        jobs.get(operations[0])


def test_a_build_that_waited_longer_than_the_history_is_remembered_when_it_ends(jobs: JobStore) -> None:
    first = jobs.submit(SPEC, b"").operation
    for _ in range(3):
        jobs.record(jobs.submit(SPEC, b"").operation, Finished(Stage.SUCCEEDED, version=1))
    jobs.record(first, Finished(Stage.SUCCEEDED, version=2))
    assert jobs.get(first).state.version == 2


def test_finished_builds_are_forgotten_with_age_and_their_request_ids_with_them(tmp_path: Path) -> None:
    now = [1000.0]
    jobs = JobStore(tmp_path / "q.sqlite", history_seconds=100.0, clock=lambda: now[0])
    old, waits = jobs.submit(SPEC, b"", "id"), jobs.submit(spec("b"), b"")
    jobs.record(old.operation, Finished(Stage.CANCELLED, error=ERROR))
    now[0] = 1099.0
    jobs.expire()
    assert jobs.submit(SPEC, b"", "id").operation == old.operation
    now[0] = 1101.0
    jobs.expire()
    assert [job.operation for job in jobs.page(10)] == [waits.operation]
    assert jobs.submit(SPEC, b"other", "id").operation != old.operation
    jobs.close()


def test_pages_go_on_by_key_while_builds_come_and_go(jobs: JobStore) -> None:
    ids = [jobs.submit(SPEC, b"").id for _ in range(7)]
    first = jobs.page(3)
    jobs.submit(SPEC, b"")
    jobs.record(first[1].operation, Finished(Stage.CANCELLED, error=ERROR))
    jobs.delete(first[1].operation)
    rest = jobs.page(10, first[-1].id)
    assert [job.id for job in first] + [job.id for job in rest] == ids[::-1]


def test_a_lost_build_is_queued_again_and_given_up_the_third_time(jobs: JobStore) -> None:
    operation = jobs.submit(SPEC, b"").operation
    for attempt in (2, 3):
        _run_to(jobs, operation, Stage.FETCHING, Stage.CAPTURING)
        job = jobs.lose(operation)
        assert (job.state.stage, job.state.attempt, job.state.fraction) == (Stage.QUEUED, attempt, 0.0)
        assert f"({attempt - 1} of 3" in job.state.message
    _run_to(jobs, operation, Stage.FETCHING)
    job = jobs.lose(operation)
    assert job.state.stage is Stage.FAILED
    assert job.state.error is not None
    assert job.state.error.reason == "BUILD_LOST"
    stored = jobs.events_after(operation, 0)
    assert [each.sequence for each in stored] == list(range(1, len(stored) + 1))


def test_numbers_that_a_power_cut_may_have_taken_back_are_not_given_again(jobs: JobStore) -> None:
    operation = jobs.submit(SPEC, b"").operation
    _run_to(jobs, operation, Stage.FETCHING)
    jobs.lose(operation, power_cut=True)
    assert [each.sequence for each in jobs.events_after(operation, 0)] == [1, 10_002, 10_003]


def test_an_orderly_restart_is_no_loss(jobs: JobStore) -> None:
    operation = jobs.submit(SPEC, b"").operation
    for attempt in range(2, 8):
        _run_to(jobs, operation, Stage.FETCHING)
        assert jobs.requeue(operation, attempt).state.attempt == attempt
    assert [job.operation for job in jobs.page(10) if not job.state.done] == [operation]


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
        share = done / total if total else 0.0
        later = apply(state, Progress(done, total, "bytes", fraction(stage, share)), 1.0)
        assert fraction(stage) <= state.fraction <= later.fraction <= fraction(stage, 1.0)
        state = later


def test_the_memory_peak_is_kept_over_attempts() -> None:
    state = State(stage_time=0.0, create_time=0.0)
    for peak in (5, 3):
        state = apply(state, Memory(1, peak, 0), 1.0)
    assert state.memory_peak == 5


def test_a_full_disk_is_said_and_leaves_no_transaction_open(tmp_path: Path) -> None:
    jobs = JobStore(tmp_path / "builds.sqlite")
    operation = jobs.submit(SPEC, b"").operation
    pages = jobs.database.connection.execute("PRAGMA page_count").fetchone()[0]
    jobs.database.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ResourceExhausted) as caught:
        jobs.submit(SPEC, b"x" * 100_000)
    assert caught.value.reason == "DISK_FULL"
    assert not jobs.database.connection.in_transaction
    jobs.database.connection.execute("PRAGMA max_page_count = 100000")
    jobs.submit(SPEC, b"x" * 5000)
    assert jobs.get(operation).state.stage is Stage.QUEUED
    jobs.close()
