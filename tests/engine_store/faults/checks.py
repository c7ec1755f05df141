"""What must hold of a store whatever happened to it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from engine_store import EngineStore


class State(NamedTuple):
    """What a reader sees of the engine `tiny`: the build keys of its versions, and where its aliases point."""

    keys: list[str]
    aliases: dict[str, str]


def state(store: EngineStore) -> State:
    """Reads everything; each version must verify and each alias lead to one."""
    keys = {}
    for number in store.version_numbers("tiny"):
        keys[number] = store.get("tiny", number).build_key
        store.verify("tiny", number)
    aliases = {alias.alias: keys[alias.version] for alias in store.list_aliases("tiny")}
    return State(sorted(keys.values()), aliases)


def recovered(root: Path) -> State:
    """The state after recovery, which must have left nothing of dead writers, and changes nothing when repeated."""
    EngineStore(root).recover()
    found = state(EngineStore(root))
    assert leftovers(root) == []
    assert EngineStore(root).recover()[:2] == (0, 0)
    assert state(EngineStore(root)) == found
    return found


def leftovers(root: Path) -> list[str]:
    """What no living writer or version needs after a recovery: staging entries, claims, and blobs that nothing links
    after a collection."""
    staged = [f"staging/{entry.name}" for entry in root.glob("staging/*")]
    claimed = [
        f"{claim.parent.parent.name} claim {claim.name}"
        for claim in root.glob("engines/*/claims/*")
        if not (claim.parent.parent / "versions" / claim.name).exists()
    ]
    EngineStore(root).collect()
    return staged + claimed + [f"blob {blob.name}" for blob in root.glob("blobs/*/??/*") if blob.stat().st_nlink < 2]
