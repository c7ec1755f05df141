from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.errors import InvalidArgument
from service_kit import pagination


def walk(items, size, descending=False):
    token, seen = "", []
    while True:
        page = pagination.parse(size, token)
        shown, token = pagination.paginate(items, lambda item: item, page, descending=descending)
        seen.append(shown)
        if not token:
            return seen


@given(st.sets(st.integers()), st.integers(1, 20), st.booleans())
def test_pages_together_are_the_whole_list_in_order(items, size, descending):
    pages = walk(items, size, descending)
    assert [item for page in pages for item in page] == sorted(items, reverse=descending)
    assert all(len(page) == size for page in pages[:-1])


@given(st.sets(st.text(max_size=5), min_size=3))
def test_the_next_page_survives_the_deletion_of_the_last_item_seen(items):
    shown, token = pagination.paginate(items, str, pagination.parse(2, ""))
    rest, _ = pagination.paginate(items - set(shown), str, pagination.parse(0, token))
    assert rest == sorted(items)[2 : 2 + pagination.DEFAULT_SIZE]


def test_zero_is_the_default_and_too_much_is_the_most():
    assert pagination.parse(0, "").size == 50
    assert pagination.parse(10**6, "").size == 1000


def test_a_negative_size_is_refused_by_name():
    with pytest.raises(InvalidArgument) as caught:
        pagination.parse(-1, "")
    assert caught.value.metadata["field"] == "page_size"


@given(st.text(min_size=1))
def test_a_made_up_token_is_refused(token):
    with pytest.raises(InvalidArgument) as caught:
        pagination.parse(0, token)
    assert caught.value.reason == "INVALID_PAGE_TOKEN"


@pytest.mark.parametrize("inside", [b"[" * 3000, b'{"a":' * 600, b"9" * 3000, b'[1, "", null]', b"\xff"])
def test_a_forged_token_is_refused(inside):
    with pytest.raises(InvalidArgument) as caught:
        pagination.parse(0, base64.urlsafe_b64encode(inside).decode())
    assert caught.value.reason == "INVALID_PAGE_TOKEN"


def test_a_token_of_another_list_is_refused():
    token = pagination.encode("a", "engines/x")
    assert pagination.parse(0, token, "engines/x").after == "a"
    with pytest.raises(InvalidArgument):
        pagination.parse(0, token, "engines/y")


def test_a_token_with_a_key_of_another_type_is_refused():
    page = pagination.parse(0, pagination.encode("a"))
    with pytest.raises(InvalidArgument):
        pagination.paginate([1, 2], lambda item: item, page)
