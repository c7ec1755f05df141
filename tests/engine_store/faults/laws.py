"""The laws that a soak's history and its store must obey, each a function that asserts it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from engine_store import EngineStore, Manifest
from engine_store.aliases import AliasRecord
from tests.engine_store.faults.actors import ALIASES
from tests.engine_store.faults.history import Attempt, Event, attempts, seen

PUBLISHES = {"publish own", "publish shared", "publish forced"}


def check(root: Path, events: list[Event], verified: set[int]) -> int:
    """All laws, on a store that nobody writes and that was recovered. The number of versions.

    Args:
        verified: the versions whose files need not be read again; those that are read now are added.
    """
    store, tried = EngineStore(root), attempts(events)
    live = {number: store.get("tiny", number) for number in store.version_numbers("tiny")}
    for number in live.keys() - verified:
        store.verify("tiny", number)
        verified.add(number)
    a_number_means_one_content(events, tried, live)
    a_key_has_one_version_unless_forced(tried, live)
    what_was_acknowledged_is_there(root, events, tried, live)
    for alias in ALIASES:
        records = _records(root, alias)
        an_alias_log_is_a_total_order(records, [attempt for attempt in tried if attempt.start.alias == alias])
        an_alias_leads_to_a_version(alias, records, tried, live)
    return len(live)


def a_number_means_one_content(events: list[Event], tried: list[Attempt], live: dict[int, Manifest]) -> None:
    contents: dict[int, tuple[str, str]] = {}
    for event in [*(event for event in events if event.phase == "seen"), *map(seen, live.values())]:
        content = contents.setdefault(event.version, (event.attempt, event.digest))
        assert content == (event.attempt, event.digest), f"version {event.version} had two contents"
    for attempt in tried:
        if attempt.done and attempt.start.op in PUBLISHES and not attempt.end.reused:
            carried = contents.get(attempt.end.version, (attempt.start.attempt, ""))[0]
            assert carried == attempt.start.attempt, f"{attempt} was given a number that {carried} has"


def a_key_has_one_version_unless_forced(tried: list[Attempt], live: dict[int, Manifest]) -> None:
    forced = Counter(attempt.start.key for attempt in tried if attempt.start.op == "publish forced")
    for key, count in Counter(manifest.build_key for manifest in live.values()).items():
        assert count <= 1 + forced[key], f"{count} versions carry {key}"


def what_was_acknowledged_is_there(
    root: Path, events: list[Event], tried: list[Attempt], live: dict[int, Manifest]
) -> None:
    deletes = [attempt for attempt in tried if attempt.start.op == "delete version"]
    wanted_gone = {attempt.start.version for attempt in deletes}
    wanted_gone |= {event.version for event in events if event.phase == "evicted"}
    if any(attempt.start.op == "evict" and not attempt.done for attempt in tried):  # what it hid is not known
        wanted_gone |= {int(path.name) for path in root.glob("engines/tiny/tombstones/*")}
    for attempt in deletes:
        assert not attempt.done or attempt.start.version not in live, f"{attempt} is back"
    for attempt in tried:
        if attempt.done and attempt.start.op in PUBLISHES and attempt.end.version not in wanted_gone:
            assert attempt.end.version in live, f"{attempt} is lost"
            assert live[attempt.end.version].build_key == attempt.start.key


def an_alias_log_is_a_total_order(records: dict[int, AliasRecord], tried: list[Attempt]) -> None:
    """`tried`: the attempts at this alias."""
    assert sorted(records) == list(range(1, len(records) + 1))
    sets = [attempt for attempt in tried if attempt.start.op == "set alias"]
    acknowledged = {}
    for attempt in sets:
        if attempt.done:
            number = int(attempt.end.etag)
            assert number not in acknowledged, f"{attempt} and {acknowledged[number]} were given one number"
            acknowledged[number] = attempt
            assert records[number] == AliasRecord(version=attempt.start.version, time=attempt.end.time)
            _follows(attempt, number, records)
    unsure = [attempt for attempt in sets if not attempt.done]
    for number in records.keys() - acknowledged.keys():
        if (version := records[number].version) != 0:
            named = {attempt.start.version for attempt in unsure}
            assert version in named or _put_back(number, records, named), f"nobody wrote record {number}"
    deletes = [attempt for attempt in tried if attempt.start.op == "delete alias"]
    zeros = sum(record.version == 0 for record in records.values())
    assert sum(attempt.done for attempt in deletes) <= zeros <= len(deletes) + len(unsure)


def _put_back(number: int, records: dict[int, AliasRecord], unsure: set[int]) -> bool:
    """Whether the record takes the one before it back, whose version went while it was written."""
    return (
        number > 2 and records[number - 1].version in unsure and records[number].version == records[number - 2].version
    )


def _follows(attempt: Attempt, number: int, records: dict[int, AliasRecord]) -> None:
    """A change that named an etag came next after it."""
    if attempt.start.etag is None:
        return
    if attempt.start.etag == "0":
        assert number == 1 or records[number - 1].version == 0
    else:
        assert number == int(attempt.start.etag) + 1


def an_alias_leads_to_a_version(
    alias: str, records: dict[int, AliasRecord], tried: list[Attempt], live: dict[int, Manifest]
) -> None:
    """Unless a deleter died between hiding the version and looking at the aliases again."""
    version = records[max(records)].version if records else 0
    if version and version not in live:
        unsure = [a.start for a in tried if not a.done]
        named = {start.version for start in unsure if start.op in ("delete version", "set alias")}
        evicting = any(start.op == "evict" for start in unsure)
        assert version in named or evicting, f"{alias} leads to the deleted {version}"


def _records(root: Path, alias: str) -> dict[int, AliasRecord]:
    folder = root / "engines" / "tiny" / "aliases" / alias
    return {int(path.name): msgspec.json.decode(path.read_bytes(), type=AliasRecord) for path in folder.glob("*")}
