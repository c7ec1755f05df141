from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from builder_service.estimate import Estimate
from builder_service.job import Stage
from builder_service.queue.eta import build_seconds, creep, expected_end
from builder_service.queue.events import FINAL, RUNNING, Started, fraction
from builder_service.queue.state import State, apply

stages = st.sampled_from(RUNNING)
estimates = st.none() | st.builds(Estimate, st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.floats(0, 1e6))


def running(done: float, began: float = 1000.0) -> State:
    return State(
        stage=Stage.CONVERTING, stage_time=began, create_time=0.0, start_time=began, fraction=done, memory_peak=0
    )


@given(stages, estimates, st.floats(0, 0.95), st.floats(0.01, 1e5))
def test_silence_moves_a_stage_on_and_never_to_its_end(
    stage: Stage, estimate: Estimate | None, share: float, seconds: float
) -> None:
    later = creep(share, seconds, stage, estimate)
    assert share < later < 1.0
    assert fraction(stage, share) <= fraction(stage, later) < fraction(stage, 1.0)


@given(stages, estimates, st.floats(0, 0.9), st.lists(st.floats(0, 100), max_size=20))
def test_how_silence_is_cut_into_ticks_does_not_matter(
    stage: Stage, estimate: Estimate | None, share: float, ticks: list[float]
) -> None:
    stepped = share
    for tick in ticks:
        stepped = creep(stepped, tick, stage, estimate)
    assert abs(stepped - creep(share, sum(ticks), stage, estimate)) < 1e-9


def test_a_silent_stage_is_half_done_when_its_expected_time_is_over() -> None:
    estimate = Estimate(0, 0, 100.0)
    seconds = 100.0 * (fraction(Stage.CONVERTING, 1.0) - fraction(Stage.CONVERTING))
    assert abs(creep(0.0, seconds, Stage.CONVERTING, estimate) - 0.5) < 1e-9


@given(st.floats(0, 1), estimates, st.floats(-100, 1e6))
def test_the_end_is_never_expected_in_the_past(done: float, estimate: Estimate | None, elapsed: float) -> None:
    now = 1000.0 + elapsed
    end = expected_end(running(done), estimate, now)
    assert end is not None
    assert now <= end <= now + build_seconds(estimate) + max(elapsed, 0.0)


@given(st.floats(1, 1e4), st.floats(1, 1e4))
def test_the_expected_end_moves_from_the_estimate_to_the_real_one(estimated: float, real: float) -> None:
    """A build that goes on evenly for `real` seconds."""
    estimate = Estimate(0, 0, estimated)
    shares = [0.0, 0.25, 0.5, 0.75, 0.9, 0.99]
    errors = []
    for share in shares:
        end = expected_end(running(share), estimate, 1000.0 + share * real)
        assert end is not None
        errors.append(abs(end - (1000.0 + real)))
    assert abs(errors[0] - abs(estimated - real)) < 1e-6
    assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(errors))
    assert errors[-1] <= 0.001 * abs(estimated - real) + 1e-6


def test_only_a_running_build_has_an_expected_end() -> None:
    waits = State(stage_time=0.0, create_time=0.0)
    assert expected_end(waits, None, 1.0) is None
    runs = apply(waits, Started(Stage.FETCHING, 0.0, 1), 5.0)
    assert expected_end(runs, None, 6.0) is not None
    again = apply(runs, Started(Stage.QUEUED, 0.0, 2), 7.0)
    assert expected_end(again, None, 8.0) is None
    assert apply(again, Started(Stage.FETCHING, 0.0, 2), 9.0).start_time == 9.0
    for stage in FINAL:
        assert expected_end(State(stage=stage, stage_time=0.0, create_time=0.0, start_time=1.0), None, 2.0) is None
