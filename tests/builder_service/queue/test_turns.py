from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from builder_service.queue.turns import MAX_OVERTAKEN, PATIENCE_SECONDS, Budget, Choice, Waiting, choose, turn

priorities = st.floats(0, 1)
times = st.floats(0, 2e9)


def effective(priority: float, entered: float, now: float) -> float:
    """The rule as it is promised."""
    return priority + (now - entered) / PATIENCE_SECONDS


@given(st.tuples(priorities, times), st.tuples(priorities, times), st.floats(0, 1e6))
def test_the_order_is_that_of_the_aged_priorities_at_any_time(
    one: tuple[float, float], other: tuple[float, float], later: float
) -> None:
    now = max(one[1], other[1]) + later
    ahead = effective(*one, now) - effective(*other, now)
    if abs(ahead) > 1e-6:
        assert (turn(*one) < turn(*other)) == (ahead > 0)


@given(priorities, times, times)
def test_among_equals_the_older_comes_first(priority: float, one: float, other: float) -> None:
    if one < other:
        assert turn(priority, one) <= turn(priority, other)


@given(priorities, priorities, times, st.floats(1e-3, 1e6))
def test_nobody_who_comes_later_than_the_patience_is_taken_before(
    mine: float, theirs: float, entered: float, more: float
) -> None:
    assert turn(mine, entered) < turn(theirs, entered + PATIENCE_SECONDS + more)


@given(st.lists(st.tuples(priorities, st.floats(0, 600)), min_size=1, max_size=40), st.floats(60, 1200))
def test_no_build_starves_under_a_stream_of_urgent_ones(others: list[tuple[float, float]], every: float) -> None:
    """One build of priority 0 among those that wait already, and one of priority 1 more each time that one ends."""
    waiting = sorted([(turn(p, t), i) for i, (p, t) in enumerate(others)] + [(turn(0.0, 600.0), -1)])
    now, taken, number = 600.0, 0, len(others)
    while waiting.pop(0)[1] != -1:
        taken, now, number = taken + 1, now + every, number + 1
        waiting = sorted([*waiting, (turn(1.0, now), number)])
    assert taken <= len(others) + PATIENCE_SECONDS / every + 1


def _waiting(*sizes: int | None) -> list[Waiting]:
    return [Waiting(str(index), str(index), size) for index, size in enumerate(sizes)]


def test_a_build_starts_when_a_place_and_its_memory_are_free() -> None:
    first, second = _waiting(60, 30)
    assert choose([first], [], Budget(100, 2), {}) == Choice(first, [])
    assert choose([first], [50], Budget(100, 2), {}) == Choice(None, [])
    assert choose([second], [50], Budget(100, 1), {}) == Choice(None, [])
    assert choose([first, second], [50], Budget(100, 2), {}) == Choice(second, ["0"])
    assert choose([first], [50], Budget(0, 2), {}) == Choice(first, [])


def test_a_build_above_the_whole_budget_runs_alone() -> None:
    (giant,) = _waiting(500)
    assert choose([giant], [], Budget(100, 4), {}).start == giant
    assert choose([giant], [1], Budget(100, 4), {}).start is None


def test_a_build_of_unknown_size_counts_as_an_equal_share() -> None:
    (unknown,) = _waiting(None)
    assert choose([unknown], [75], Budget(100, 4), {}).start == unknown
    assert choose([unknown], [76], Budget(100, 4), {}).start is None


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(2, 6))
def test_a_build_that_does_not_fit_is_overtaken_a_bounded_number_of_times(sizes: list[int], places: int) -> None:
    """Builds end in the order in which they began; whatever waits, nothing is overtaken more often than the bound, the
    budget holds, and all have run in the end."""
    budget, overtaken = Budget(100, places), dict[str, int]()
    waiting, running, ran = _waiting(*sizes), list[Waiting](), list[str]()
    while waiting or running:
        choice = choose(waiting, [build.memory_bytes for build in running], budget, overtaken)
        if choice.start is None:
            running.pop(0)
            continue
        for operation in choice.overtaken:
            overtaken[operation] = overtaken.get(operation, 0) + 1
        waiting.remove(choice.start)
        running.append(choice.start)
        ran.append(choice.start.operation)
        assert sum(build.memory_bytes for build in running) <= 100
        assert len(running) <= places
    assert sorted(ran, key=int) == [str(index) for index in range(len(sizes))]
    assert max(overtaken.values(), default=0) <= MAX_OVERTAKEN
