"""Numbered records: a directory of small files 1, 2, 3, ..., each made whole by link(2); the highest number wins.

Two writers that append the same number cannot both succeed, on NFS too; a reader never sees half a record. Records
are never changed or removed, so a number that was lost stays lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from engine_store.disk import Disk
from engine_store.manifest import UNREADABLE
from engine_store.names import is_number
from engine_store.owner import new_token
from enginehouse.errors import DataLoss

R = TypeVar("R", bound=msgspec.Struct)


class Numbered(NamedTuple, Generic[R]):
    """A record and its number (from 1)."""

    number: int
    value: R


class Records(Generic[R]):
    """The records of one directory, all of one type. `scratch` is on the same file system; `step` begins the labels
    of what is written."""

    def __init__(self, path: Path, scratch: Path, kind: type[R], disk: Disk, step: str) -> None:
        self._path, self._scratch, self._kind, self._disk, self._step = path, scratch, kind, disk, step

    def newest_first(self) -> Iterator[Numbered[R]]:
        """All records, the highest number first."""
        for number in sorted(numbers_in(self._path), reverse=True):
            yield Numbered(number, self._read(number))

    def latest(self) -> Numbered[R] | None:
        """The record that counts, or None when there is none."""
        return next(self.newest_first(), None)

    def append(self, number: int, value: R) -> bool:
        """Adds the record `number`, durably; False when another writer took that number."""
        for folder in (self._path, self._scratch):
            self._disk.make_dirs(folder, f"{self._step}.folder")
        draft = self._scratch / new_token()
        try:
            self._disk.write(draft, msgspec.json.encode(value), f"{self._step}.draft")
            won = self._disk.link(draft, self._path / str(number), f"{self._step}.link")
            if won:
                self._disk.sync_dir(self._path, f"{self._step}.sync")
        finally:
            self._disk.drop(draft, f"{self._step}.draft.remove")
        return won

    def _read(self, number: int) -> R:
        try:
            return msgspec.json.decode((self._path / str(number)).read_bytes(), type=self._kind)
        except UNREADABLE as error:
            raise DataLoss(
                f"Record {number} of {self._path.parent.name}/{self._path.name} in the engine store is damaged; "
                "restore the file, or remove it to go back to the record before it.",
                reason="RECORD_DAMAGED",
                metadata={"record": number},
            ) from error


def numbers_in(path: Path) -> set[int]:
    """The entries of a directory whose names are numbers; empty when it does not exist."""
    try:
        return {int(entry.name) for entry in path.iterdir() if is_number(entry.name)}
    except FileNotFoundError:
        return set()
