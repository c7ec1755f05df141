"""What differs between two engine versions, fact by fact."""

from __future__ import annotations

from typing import NamedTuple

from enginehouse.engine_types import EngineTarget, EngineVersion, VerifyReport

ABSENT = "-"
_MEASURED = ("_seconds", "memory_bytes")
"""Ends of the names of build facts that were measured: never twice the same, and so not compared."""


class Difference(NamedTuple):
    """A fact, for example "limits.max_seq_len", and what each version says; "-" where it says nothing."""

    field: str
    a: str
    b: str


def differences(a: EngineVersion, b: EngineVersion) -> list[Difference]:
    """The facts that are not the same, in a fixed order. Names, aliases, times and
    what was measured do not count."""
    left, right = _facts(a), _facts(b)
    names = [*left, *(name for name in right if name not in left)]
    rows = (Difference(name, left.get(name, ABSENT), right.get(name, ABSENT)) for name in names)
    return [row for row in rows if row.a != row.b]


def _facts(version: EngineVersion) -> dict[str, str]:
    """Everything that is compared, flat."""
    source, limits = version.source, version.limits
    facts: dict[str, object] = {
        "source": f"{source.kind} {source.location} {source.revision}".strip() if source else None,
        "source digest": version.source_digest,
        "build key": version.build_key,
        "architecture": version.architecture,
        "dtype": version.dtype,
        "quantization": version.quant_algo,
        "vocabulary": version.vocab_size,
        "opset": version.opset,
        "features": ", ".join(version.features),
        "compute capabilities": ", ".join(version.compute_capabilities),
        **{f"limits.{name}": value for name, value in (vars(limits) if limits else {}).items()},
        **{f"cache.{index}": str(group) for index, group in enumerate(version.cache_groups)},
        **{f"library.{name}": value for name, value in sorted(version.libraries.items())},
        **{name: value for target in version.targets for name, value in _target(target).items()},
        **_verification(version.verify_report),
        **{f"build.{name}": value for name, value in _build(version).items()},
        **{f"label.{name}": value for name, value in sorted(version.labels.items())},
        **{f"file.{file.path}": f"{file.size_bytes} bytes, {file.digest}" for file in version.files},
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _target(target: EngineTarget) -> dict[str, object]:
    libraries = ", ".join(f"{name} {value}" for name, value in sorted(target.libraries.items()))
    facts = {"verification": target.verification, "libraries": libraries, "build key": target.build_key}
    return {f"target.{target.name}.{name}": value for name, value in facts.items()}


def _verification(report: VerifyReport | None) -> dict[str, object]:
    return {f"verified.{name}": value for name, value in (vars(report) if report else {}).items() if value}


def _build(version: EngineVersion) -> dict[str, str]:
    return {name: value for name, value in sorted(version.build_facts.items()) if not name.endswith(_MEASURED)}
