"""Pages of lists as AIP-158 has them: opaque tokens, resumed by key, so that a change between pages loses nothing."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from enginehouse.errors import InvalidArgument

DEFAULT_SIZE = 50
MAX_SIZE = 1000
_MAX_TOKEN = 4096

Key = str | int
T = TypeVar("T")


class Page(NamedTuple):
    """A validated page request. `after` is the key of the last item that the caller has; None begins."""

    size: int
    after: Key | None


class Paged(NamedTuple, Generic[T]):
    """The items of a page, and the token of the next one; empty on the last."""

    items: list[T]
    next_page_token: str


def parse(page_size: int, page_token: str, scope: str = "") -> Page:
    """Validates what a List request carries. 0 means 50; above 1000 counts as 1000.

    Args:
        scope: what else the request filters by; a token is good for the same scope only.

    Raises:
        InvalidArgument: a negative size, or a token that this server did not make for this scope.
    """
    if page_size < 0:
        raise InvalidArgument(
            f"`page_size` is {page_size}; give 0 for the default or a positive number.",
            reason="INVALID_PAGE_SIZE",
            metadata={"field": "page_size", "value": page_size},
        )
    return Page(min(page_size or DEFAULT_SIZE, MAX_SIZE), _decode(page_token, scope) if page_token else None)


def encode(key: Key, scope: str = "") -> str:
    """The token of the page after the item with this key."""
    return base64.urlsafe_b64encode(json.dumps([1, scope, key]).encode()).decode()


def _decode(token: str, scope: str) -> Key:
    try:
        if len(token) > _MAX_TOKEN:
            raise ValueError("too long")
        version, made_for, key = json.loads(base64.b64decode(token, altchars=b"-_", validate=True))
        if version != 1 or made_for != scope or not isinstance(key, str | int):
            raise ValueError("another request's token")
    except (ValueError, TypeError, binascii.Error, RecursionError) as exc:  # the last for deeply nested JSON
        raise bad_token() from exc
    return key


def bad_token() -> InvalidArgument:
    """The refusal of a token whose key cannot be one of this list's."""
    return InvalidArgument(
        "`page_token` does not belong to this request; repeat the request without it.",
        reason="INVALID_PAGE_TOKEN",
        metadata={"field": "page_token"},
    )


def paginate(
    items: Iterable[T], key: Callable[[T], Key], page: Page, scope: str = "", descending: bool = False
) -> Paged[T]:
    """One page of items in the order of their keys, which are unique and all of one type."""
    ordered = sorted(items, key=key, reverse=descending)
    if page.after is not None:
        after = page.after
        if ordered and type(key(ordered[0])) is not type(after):
            raise bad_token()
        ordered = [item for item in ordered if _is_past(key(item), after, descending)]
    shown = ordered[: page.size]
    return Paged(shown, encode(key(shown[-1]), scope) if len(ordered) > page.size else "")


def _is_past(key: Key, after: Key, descending: bool) -> bool:
    return key < after if descending else key > after  # type: ignore[operator]
