"""The hub client's failures as typed errors."""

from __future__ import annotations

from typing import NamedTuple

from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from builder_service.job import SourceSpec
from enginehouse.errors import EnginehouseError, InvalidArgument, NotFound, PermissionDenied, Unavailable


class _Answer(NamedTuple):
    kind: type[EnginehouseError]
    reason: str
    message: str


def translate(error: Exception, spec: SourceSpec) -> Exception:
    """The typed error for a failure of the hub's client; any other exception is returned as it is."""
    answer = _answer(error, spec)
    if answer is None:
        return error
    facts = {"repo": spec.repo, "revision": spec.revision or "main", "file": spec.file}
    return answer.kind(answer.message, reason=answer.reason, metadata={k: v for k, v in facts.items() if v})


def _answer(error: Exception, spec: SourceSpec) -> _Answer | None:
    what = f"{spec.repo} at {spec.revision or 'main'}" + (f", file {spec.file}" if spec.file else "")
    if isinstance(error, HFValidationError):
        message = f"{spec.repo!r} is no hub repository id; give `owner/name`."
        return _Answer(InvalidArgument, "BAD_REPO_ID", message)
    if isinstance(error, GatedRepoError):
        message = f"{spec.repo} is gated; accept its terms on the hub and give the builder a token in HF_TOKEN."
        return _Answer(PermissionDenied, "HUB_GATED", message)
    if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError):
        message = f"The hub has no {what}, or it is private; check the name, or give the builder a token in HF_TOKEN."
        return _Answer(NotFound, "HUB_NOT_FOUND", message)
    if isinstance(error, EntryNotFoundError):
        return _Answer(NotFound, "HUB_NOT_FOUND", f"{what} does not exist on the hub.")
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        return _status(error.response.status_code, what)
    if isinstance(error, HTTPError | OfflineModeIsEnabled):
        message = f"The hub cannot be reached for {what}; check the builder's network, or build from a local path."
        return _Answer(Unavailable, "HUB_UNREACHABLE", message)
    return None


def _status(status: int, what: str) -> _Answer:
    if status in (401, 403):
        message = f"The hub refuses {what} to this builder ({status}); give it a token in HF_TOKEN that may read it."
        return _Answer(PermissionDenied, "HUB_FORBIDDEN", message)
    message = f"The hub answers {status} for {what}; build again later, or from a local path."
    return _Answer(Unavailable, "HUB_UNREACHABLE", message)
