"""The directories that a daemon is given."""

from __future__ import annotations

import os
from pathlib import Path

from enginehouse.errors import FailedPrecondition


def usable_directory(path: Path, what: str) -> Path:
    """The absolute directory, made where it is missing and proven writable. `what` it is, for the message.

    Raises:
        FailedPrecondition: DIRECTORY_UNUSABLE.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise _unusable(path, what, "it is a file") from error
    except OSError as error:
        raise _unusable(path, what, error.strerror) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _unusable(path, what, "not writable")
    return path.absolute()


def _unusable(path: Path, what: str, why: str | None) -> FailedPrecondition:
    return FailedPrecondition(
        f"The {what} directory {path} cannot be used ({why}); check its permissions or give another.",
        reason="DIRECTORY_UNUSABLE",
        metadata={"directory": path},
    )
