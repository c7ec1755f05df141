"""Which models were served, kept in a file so that a restarted daemon serves them again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from enginehouse.errors import FailedPrecondition
from inference_service.frontend.served_model import LoadSpec

FILE = "served.json"
_MAX_BYTES = 16 << 20


class ServedSet:
    """The file in `directory`, which is made when it is first written. Local disk, one daemon each."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE

    def read(self) -> list[LoadSpec]:
        """What was written last; nothing where nothing was.

        Raises:
            FailedPrecondition: the file cannot be read; the message names it.
        """
        try:
            if self._path.stat().st_size > _MAX_BYTES:
                raise self._unreadable()
            return msgspec.json.decode(self._path.read_bytes(), type=list[LoadSpec])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as error:
            raise self._unreadable() from error

    def write(self, specs: Sequence[LoadSpec]) -> None:
        """Replaces the content, whole or not at all."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(list(specs)), indent=2))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)

    def _unreadable(self) -> FailedPrecondition:
        return FailedPrecondition(
            f"{self._path} cannot be read as the list of served models; remove it and load the models again.",
            reason="SERVED_SET_UNREADABLE",
            metadata={"path": self._path},
        )
