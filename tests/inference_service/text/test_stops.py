from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_service.text.stops import StopChecker, StopMatch


def first_match(text: str, stops: list[str]) -> StopMatch | None:
    """The match that ends first, of those the longest; by brute force."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return StopMatch(longest, end - len(longest), end)
    return None


def held(text: str, stops: list[str]) -> int:
    lengths = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


few = st.text(alphabet="ab", min_size=1, max_size=4)


@settings(max_examples=500)
@given(pieces=st.lists(st.text(alphabet="ab", max_size=3), max_size=10), stops=st.lists(few, min_size=1, max_size=3))
def test_matches_and_held_text_equal_brute_force_however_the_text_is_cut(pieces: list[str], stops: list[str]) -> None:
    checker, text = StopChecker(stops), ""
    for piece in pieces:
        text += piece
        match = checker.feed(piece)
        assert match == first_match(text, stops)
        if match is not None:
            return
        assert checker.held == held(text, stops)


@pytest.mark.parametrize(
    ("pieces", "match"),
    [
        (["DEF", "G", "HI", "J"], StopMatch("DEFGHIJ", 0, 7)),
        (["xDEF", "G", "X"], None),
        (["DEFDEFGHIJ"], StopMatch("DEFGHIJ", 3, 10)),
    ],
)
def test_a_stop_string_is_found_across_tokens(pieces: list[str], match: StopMatch | None) -> None:
    checker = StopChecker(["DEFGHIJ"])
    assert next((m for m in map(checker.feed, pieces) if m), None) == match


def test_text_is_released_once_it_can_no_longer_match() -> None:
    checker = StopChecker(["DEFGHIJ"])
    seen = []
    for piece in ("DEF", "G", "X"):
        checker.feed(piece)
        seen.append(checker.held)
    assert seen == [3, 4, 0]


@pytest.mark.parametrize("stop", ["\n", "quickSort", "a,b", '"', ":", "é", "\x00"])
def test_any_character_may_stand_in_a_stop_string(stop: str) -> None:
    assert StopChecker([stop]).feed(f"foo{stop}bar") == StopMatch(stop, 3, 3 + len(stop))


def test_a_match_completed_while_inactive_never_counts_but_a_later_one_does() -> None:
    checker = StopChecker(["aa"])
    assert checker.feed("aa", active=False) is None
    assert checker.feed("b") is None
    assert checker.feed("a", active=False) is None
    assert checker.feed("a") == StopMatch("aa", 3, 5)


def test_no_stop_strings_hold_nothing_back() -> None:
    checker = StopChecker([])
    assert checker.feed("anything") is None
    assert checker.held == 0
