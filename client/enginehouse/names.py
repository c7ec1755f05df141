"""Names of engines, versions and checkpoints, as a person types them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from enginehouse._gen.enginehouse.builder.v1 import builder_pb2
from enginehouse.errors import InvalidArgument

ENGINE_ID = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_PART = re.compile(rf"[0-9]{{1,10}}|{ENGINE_ID.pattern}")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_RESOURCE = re.compile(r"engines/(?P<engine>[^/@]+)(/versions/(?P<version>[^/]+)|/aliases/(?P<alias>[^/]+))?")


class EngineRef(NamedTuple):
    """An engine, and which version: a number, an alias, or neither for the latest."""

    engine: str
    version: int | None = None
    alias: str | None = None

    @property
    def resource(self) -> str:
        """The resource name that GetEngineVersion takes."""
        if self.alias is not None:
            return f"engines/{self.engine}/aliases/{self.alias}"
        return f"engines/{self.engine}/versions/{self.version or 'latest'}"


def parse_engine(text: str) -> EngineRef:
    """Reads `smollm2`, `smollm2@3`, `smollm2@prod`, `engines/smollm2/versions/3` or `engines/smollm2/aliases/prod`.

    Raises:
        InvalidArgument: it is none of these.
    """
    if (match := _RESOURCE.fullmatch(text)) is not None:
        engine, part = match["engine"], match["version"] or match["alias"]
    else:
        engine, _, part = text.partition("@")
    if not ENGINE_ID.fullmatch(engine) or text.endswith("@") or not _PART.fullmatch(part or "latest"):
        raise InvalidArgument(
            f"{text[:80]!r} is not an engine: write NAME, NAME@VERSION or NAME@ALIAS in lower-case letters, digits "
            "and -.",
            reason="INVALID_ENGINE_NAME",
            metadata={"name": text[:80]},
        )
    if part in (None, "", "latest"):
        return EngineRef(engine)
    return EngineRef(engine, int(part)) if part.isdigit() else EngineRef(engine, None, part)


def engine_id_for(source: str | Path) -> str:
    """An engine id made from a checkpoint's name, for example "SmolLM2-135M-Instruct" gives "smollm2-135m-instruct"."""
    name = Path(str(source).rstrip("/").rpartition(":")[2]).name
    name = re.sub(r"[^a-z0-9]+", "-", name.lower().removesuffix(".gguf")).strip("-")
    name = name if name[:1].isalpha() else f"m-{name}"
    return name[:63].strip("-") or "model"


def checkpoint_source(source: str | Path, revision: str | None = None) -> builder_pb2.CheckpointSource:
    """Where a checkpoint is, for BuildEngine: a directory or GGUF file on the builder's machine, a hub id, or a GGUF
    file of a hub repository written as `org/repo:file.gguf`. Relative paths are taken from here."""
    text = str(source)
    repo, colon, file = text.partition(":")
    if colon and file.endswith(".gguf") and _HUB_ID.fullmatch(repo):
        hub_file = builder_pb2.HubFile(repo=repo, file=file, revision=revision or "")
        return builder_pb2.CheckpointSource(gguf=builder_pb2.GgufSource(hub_file=hub_file))
    path = Path(text).expanduser()
    local = isinstance(source, Path) or text.endswith(".gguf") or text.startswith(("/", ".", "~")) or path.exists()
    if local and revision:
        raise InvalidArgument(
            f"{text!r} is a path, which has no `revision`; leave that out, or give a hub id like org/model.",
            reason="INVALID_SOURCE",
            metadata={"source": text, "revision": revision},
        )
    if text.endswith(".gguf"):
        return builder_pb2.CheckpointSource(gguf=builder_pb2.GgufSource(path=str(path.absolute())))
    if local:
        return builder_pb2.CheckpointSource(path=str(path.absolute()))
    if not _HUB_ID.fullmatch(text):
        raise InvalidArgument(
            f"{text!r} is neither a path here nor a hub id like org/model; check the spelling.",
            reason="INVALID_SOURCE",
            metadata={"source": text},
        )
    return builder_pb2.CheckpointSource(hub=builder_pb2.HubSource(repo=text, revision=revision or ""))
