"""Refuses what a request sets and this version does not honour, by name, so that nothing is silently ignored."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from enginehouse.errors import unsupported_field


def refuse_unsupported(message: Message, honoured: Collection[str]) -> None:
    """Raises for the first field that is set and not honoured.

    Args:
        message: any request. Absent scalars, empty lists and false flags count as not set.
        honoured: dotted paths, for example "sampling.top_k". A message's path stands for all that is in it.

    Raises:
        Unimplemented: reason UNSUPPORTED_FIELD, metadata `field` with the dotted path.
    """
    for path in _unsupported(message, frozenset(honoured), ""):
        raise unsupported_field(path)


def _unsupported(message: Message, honoured: frozenset[str], prefix: str) -> Iterator[str]:
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if path in honoured:
            continue
        partly = field.type == FieldDescriptor.TYPE_MESSAGE and any(name.startswith(f"{path}.") for name in honoured)
        if not partly:
            yield path
            continue
        for part in value if field.is_repeated else (value,):
            yield from _unsupported(part, honoured, f"{path}.")
