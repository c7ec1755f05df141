"""Resource names of the wire: engines/{engine}, engines/{engine}/versions/{n}, engines/{engine}/aliases/{alias}."""

from __future__ import annotations

from typing import NamedTuple

from engine_store.names import check_id, check_version
from enginehouse.errors import InvalidArgument

ANY = "-"


class VersionRef(NamedTuple):
    """A version as a caller names it: `ref` is a number, "latest" or an alias."""

    engine: str
    ref: str


class VersionName(NamedTuple):
    """A version by its number."""

    engine: str
    version: int


class AliasName(NamedTuple):
    """An alias of an engine."""

    engine: str
    alias: str


def engine_name(name: str, field: str = "name") -> str:
    """The engine's id."""
    return check_id(_parts(name, "engines/{engine}", field)[0], field)


def parent_engine(name: str) -> str | None:
    """The engine's id in a `parent`; None for engines/-, all engines."""
    return None if name == f"engines/{ANY}" else engine_name(name, "parent")


def version_name(name: str) -> VersionName:
    """The version, by number only."""
    engine, version = _parts(name, "engines/{engine}/versions/{n}")
    if not (version.isascii() and version.isdigit() and len(version) <= 10):
        raise _bad_name(name, "engines/{engine}/versions/{n}", "name")
    return VersionName(check_id(engine, "name"), check_version(int(version)))


def version_ref(name: str) -> VersionRef:
    """The version, by number, "latest" or alias."""
    if name.split("/")[2:3] == ["aliases"]:
        return VersionRef(*alias_name(name))
    if name.endswith("/latest"):
        return VersionRef(check_id(_parts(name, "engines/{engine}/versions/{n}")[0], "name"), "latest")
    engine, version = version_name(name)
    return VersionRef(engine, str(version))


def alias_name(name: str) -> AliasName:
    """The alias."""
    engine, alias = _parts(name, "engines/{engine}/aliases/{alias}")
    return AliasName(check_id(engine, "name"), check_id(alias, "name"))


def _parts(name: str, pattern: str, field: str = "name") -> list[str]:
    """The variable parts of a name, still unchecked."""
    given, wanted = name.split("/"), pattern.split("/")
    if len(given) != len(wanted) or given[::2] != wanted[::2]:
        raise _bad_name(name, pattern, field)
    return given[1::2]


def _bad_name(name: str, pattern: str, field: str) -> InvalidArgument:
    return InvalidArgument(
        f"`{field}` is {name[:120]!r}; it must look like {pattern}.",
        reason="INVALID_RESOURCE_NAME",
        metadata={"field": field, "value": name[:120], "pattern": pattern},
    )
