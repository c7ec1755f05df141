"""How far a build is while it says nothing, and when it will end. Pure: states, estimates and times in, numbers out."""

from __future__ import annotations

from builder_service.estimate import Estimate
from builder_service.job import Stage
from builder_service.queue.events import RUNNING, weight
from builder_service.queue.state import State

_UNKNOWN_SECONDS = 60.0
"""What a build is taken to last when nothing is known of its checkpoint."""


def build_seconds(estimate: Estimate | None) -> float:
    """What a whole build is expected to take, in seconds; above 0."""
    return max(estimate.seconds, 1.0) if estimate else _UNKNOWN_SECONDS


def creep(share: float, seconds: float, stage: Stage, estimate: Estimate | None) -> float:
    """The share (0 to 1) of a stage that is shown after so many seconds without news.

    From 0 it is half done when the stage's expected time is over. It always moves and never reaches 1: what is left
    follows left' = -left**2 / expected. How the time is cut into steps does not matter.
    """
    left, expected = 1.0 - share, max(weight(stage) * build_seconds(estimate), 0.5)
    return 1.0 - left / (1.0 + left * max(seconds, 0.0) / expected)


def expected_end(state: State, estimate: Estimate | None, now: float) -> float | None:
    """When a running build will end, in seconds since the epoch, never before `now`; None for one that does not run.

    A whole build lasts as long as estimated at first; the more of it is done, the more its own pace counts.
    """
    if state.stage not in RUNNING or state.start_time is None:
        return None
    elapsed, left = max(now - state.start_time, 0.0), 1.0 - state.fraction
    whole = left * build_seconds(estimate) + elapsed  # elapsed = fraction * (elapsed / fraction), its own pace
    return now + left * whole
