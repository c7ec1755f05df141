"""The store over the builder's calls: listing, aliases, verification, downloads, garbage and quota."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from builder_service.api.files import Files
from builder_service.collector import Collector
from builder_service.queue.process import ChildSettings
from engine_store import EngineStore, Manifest
from engine_store.digests import digest_bytes
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2 as pb
from enginehouse.errors import ResourceExhausted, from_status
from tests.builder_service.serving import Remote, refused, running, settings
from tests.builder_service.serving import version as built_version
from tests.engine_store.writing import fill, manifest

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def _publish(store: EngineStore, engine: str, key: str, size: int = 1 << 10) -> Manifest:
    with store.stage() as staging:
        fill(staging.path, f"{engine}{key}", size)
        return staging.publish(manifest(engine, key)).manifest


def _leases(remote: Remote) -> list[str]:
    return [path.name for path in (remote.store.root / "leases").iterdir() if not path.name.endswith(".used")]


async def _pages(remote: Remote, size: int, **fields: object) -> AsyncIterator[list[str]]:
    token = ""
    while True:
        request = pb.ListEngineVersionsRequest(
            **{"parent": "engines/-", "page_size": size, "page_token": token, **fields}
        )
        page = await remote.builder.ListEngineVersions(request)
        yield [version.name.removeprefix("engines/").replace("/versions/", "@") for version in page.engine_versions]
        if not (token := page.next_page_token):
            return


async def test_engines_and_versions_are_listed_over_pages(remote: Remote) -> None:
    for engine, key in (("a", "k1"), ("a", "k2"), ("b", "k1")):
        await remote.build(engine_id=engine, labels={"key": key})
    first = await remote.builder.ListEngines(pb.ListEnginesRequest(page_size=1))
    assert [(each.name, each.latest_version, each.version_count) for each in first.engines] == [("engines/a", 2, 2)]
    second = await remote.builder.ListEngines(pb.ListEnginesRequest(page_token=first.next_page_token))
    assert ([each.name for each in second.engines], second.next_page_token) == (["engines/b"], "")
    every = await remote.builder.ListEngineVersions(pb.ListEngineVersionsRequest(parent="engines/-"))
    wanted = ["engines/a/versions/2", "engines/a/versions/1", "engines/b/versions/1"]
    assert [version.name for version in every.engine_versions] == wanted
    page = await remote.builder.ListEngineVersions(pb.ListEngineVersionsRequest(parent="engines/a", page_size=1))
    rest = await remote.builder.ListEngineVersions(
        pb.ListEngineVersionsRequest(parent="engines/a", page_token=page.next_page_token)
    )
    assert [version.name for version in [*page.engine_versions, *rest.engine_versions]] == wanted[:2]
    with refused("INVALID_PAGE_TOKEN", INVALID):
        await remote.builder.ListEngines(pb.ListEnginesRequest(page_token=page.next_page_token))


async def test_unknown_names_are_not_found_and_bad_ones_invalid(remote: Remote) -> None:
    with refused("ENGINE_NOT_FOUND", grpc.StatusCode.NOT_FOUND):
        await remote.builder.GetEngine(pb.GetEngineRequest(name="engines/none"))
    with refused("ENGINE_NOT_FOUND", grpc.StatusCode.NOT_FOUND):
        await remote.builder.ListEngineVersions(pb.ListEngineVersionsRequest(parent="engines/none"))
    for name in ("", "engines", "engines/../versions/1", "engines/a/versions/x", "engines/a/versions/1/x"):
        with refused("INVALID_RESOURCE_ID" if ".." in name else "INVALID_RESOURCE_NAME", INVALID):
            await remote.builder.GetEngineVersion(pb.GetEngineVersionRequest(name=name))


async def test_aliases_move_by_etag_and_guard_their_version(remote: Remote) -> None:
    await remote.build()
    name = "engines/tiny/aliases/prod"
    alias = await remote.builder.SetAlias(pb.SetAliasRequest(name=name, version=1))
    moved = await remote.builder.SetAlias(pb.SetAliasRequest(name=name, version=1, etag=alias.etag))
    with refused("ETAG_MISMATCH", grpc.StatusCode.ABORTED):
        await remote.builder.SetAlias(pb.SetAliasRequest(name=name, version=1, etag=alias.etag))
    listed = await remote.builder.ListAliases(pb.ListAliasesRequest(parent="engines/tiny"))
    assert list(listed.aliases) == [moved]
    with refused("VERSION_ALIASED", grpc.StatusCode.FAILED_PRECONDITION):
        await remote.builder.DeleteEngineVersion(pb.DeleteEngineVersionRequest(name="engines/tiny/versions/1"))
    with refused("ETAG_MISMATCH", grpc.StatusCode.ABORTED):
        await remote.builder.DeleteAlias(pb.DeleteAliasRequest(name=name, etag=alias.etag))
    await remote.builder.DeleteAlias(pb.DeleteAliasRequest(name=name, etag=moved.etag))
    deleted = await remote.builder.DeleteEngineVersion(pb.DeleteEngineVersionRequest(name="engines/tiny/versions/1"))
    assert deleted.HasField("delete_time")
    shown = await remote.builder.ListEngineVersions(
        pb.ListEngineVersionsRequest(parent="engines/tiny", show_deleted=True)
    )
    assert [version.HasField("delete_time") for version in shown.engine_versions] == [True]


async def test_verification_names_each_damaged_file(remote: Remote) -> None:
    await remote.build()
    request = pb.VerifyEngineVersionRequest(name="engines/tiny/versions/1")

    async def verify() -> pb.VerifyEngineVersionResponse:
        answer, operation = pb.VerifyEngineVersionResponse(), await remote.builder.VerifyEngineVersion(request)
        assert (await remote.done(operation)).response.Unpack(answer)
        return answer

    intact = await verify()
    assert (intact.intact, intact.files_checked) == (True, 2)
    folder = remote.store.version_path("tiny", 1)
    (folder / "graph.json").unlink()
    (folder / "stray").write_bytes(b"x")
    damaged = await verify()
    assert not damaged.intact
    found = [(problem.path, problem.problem) for problem in damaged.problems]
    assert found == [("graph.json", "missing"), ("stray", "unexpected")]


async def test_a_download_brings_every_file_whole(remote: Remote) -> None:
    version = built_version(await remote.build())
    files: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    async for chunk in remote.builder.DownloadEngineVersion(pb.DownloadEngineVersionRequest(name=version.name)):
        assert len(chunk.data) <= 1 << 20
        assert chunk.offset == len(files.setdefault(chunk.path, b""))
        files[chunk.path] += chunk.data
        digests[chunk.path] = chunk.digest
    assert digests == {path: digest_bytes(files[path]) for path in digests}
    digests.pop("engine.json")
    assert digests == {file.path: file.digest for file in version.files}
    assert files["engine.json"] == (remote.store.version_path("tiny", 1) / "engine.json").read_bytes()
    assert _leases(remote) == []
    with refused("TARGET_NOT_FOUND", grpc.StatusCode.NOT_FOUND):
        request = pb.DownloadEngineVersionRequest(name=version.name, targets=["tensorrt"])
        await remote.builder.DownloadEngineVersion(request).read()


# Many versions


async def test_every_version_is_listed_once_whatever_its_engine_is_called(remote: Remote) -> None:
    for engine in ("a", "a-b", "ab"):
        for key in range(11 if engine == "a" else 1):
            _publish(remote.store, engine, f"k{key}")
    wanted = [*(f"a@{number}" for number in range(11, 0, -1)), "a-b@1", "ab@1"]
    for size in (1, 2, 3, 5, 12, 13, 14):
        pages = [page async for page in _pages(remote, size)]
        assert [name for page in pages for name in page] == wanted
        assert all(len(page) == size for page in pages[:-1])


async def test_a_page_goes_on_where_the_last_one_ended_while_versions_come_and_go(remote: Remote) -> None:
    for key in range(6):
        _publish(remote.store, "a", f"k{key}")
    seen: list[list[str]] = []
    async for page in _pages(remote, 2):
        seen.append(page)
        if len(seen) == 1:
            _publish(remote.store, "a", "later")  # newer than all: belongs before this page
            remote.store.delete_version("a", 5)  # the last of this page
            remote.store.delete_version("a", 4)  # the first of the next
    assert seen == [["a@6", "a@5"], ["a@3", "a@2"], ["a@1"]]


async def test_deleted_versions_are_listed_among_the_others_when_asked(remote: Remote) -> None:
    for key in range(5):
        _publish(remote.store, "a", f"k{key}")
    for number in (4, 2):
        remote.store.delete_version("a", number)
    assert [page async for page in _pages(remote, 2)] == [["a@5", "a@3"], ["a@1"]]
    pages = [page async for page in _pages(remote, 2, parent="engines/a", show_deleted=True)]
    assert pages == [["a@5", "a@4"], ["a@3", "a@2"], ["a@1"]]
    shown = await remote.builder.ListEngineVersions(pb.ListEngineVersionsRequest(parent="engines/a", show_deleted=True))
    assert [version.HasField("delete_time") for version in shown.engine_versions] == [False, True, False, True, False]


async def test_a_page_reads_the_manifests_of_its_own_versions_alone(remote: Remote) -> None:
    for key in range(5):
        _publish(remote.store, "a", f"k{key}")
    for number in (1, 2, 3):
        path = remote.store.version_path("a", number) / "engine.json"
        path.unlink()
        os.mkfifo(path)  # whoever opens it hangs
    request = pb.ListEngineVersionsRequest(parent="engines/a", page_size=2)
    page = await asyncio.wait_for(remote.builder.ListEngineVersions(request), 5)
    assert [version.name for version in page.engine_versions] == ["engines/a/versions/5", "engines/a/versions/4"]


async def test_a_damaged_version_does_not_hide_the_others(remote: Remote) -> None:
    for key in range(3):
        _publish(remote.store, "a", f"k{key}")
    (remote.store.version_path("a", 3) / "engine.json").write_bytes(b"{")
    listed = await remote.builder.ListEngineVersions(pb.ListEngineVersionsRequest(parent="engines/a"))
    assert [version.name[-1] for version in listed.engine_versions] == ["3", "2", "1"]
    assert "manifest" in listed.engine_versions[0].build_facts["error"]
    engine = await remote.builder.GetEngine(pb.GetEngineRequest(name="engines/a"))
    assert (engine.latest_version, engine.version_count) == (3, 3)
    with refused("MANIFEST_DAMAGED", grpc.StatusCode.DATA_LOSS):
        await remote.builder.GetEngineVersion(pb.GetEngineVersionRequest(name="engines/a/versions/3"))


async def test_a_damaged_version_can_be_deleted(remote: Remote) -> None:
    _publish(remote.store, "a", "k")
    (remote.store.version_path("a", 1) / "engine.json").write_bytes(b"{")
    deleted = await remote.builder.DeleteEngineVersion(pb.DeleteEngineVersionRequest(name="engines/a/versions/1"))
    assert (deleted.name, deleted.HasField("delete_time")) == ("engines/a/versions/1", True)
    listed = await remote.builder.ListEngineVersions(
        pb.ListEngineVersionsRequest(parent="engines/a", show_deleted=True)
    )
    assert [version.name for version in listed.engine_versions] == ["engines/a/versions/1"]


async def test_a_token_of_another_kind_of_key_is_refused(remote: Remote) -> None:
    from service_kit.pagination import encode

    for key in ("a", "a/x", 7):
        token = encode(key, "engines/-/versions False")
        with refused("INVALID_PAGE_TOKEN", INVALID):
            await remote.builder.ListEngineVersions(pb.ListEngineVersionsRequest(parent="engines/-", page_token=token))


# Leases


async def test_the_last_use_is_told(remote: Remote) -> None:
    _publish(remote.store, "a", "k")
    request = pb.GetEngineVersionRequest(name="engines/a/versions/1")
    assert not (await remote.builder.GetEngineVersion(request)).HasField("last_use_time")
    began = time.time()
    async for _ in remote.builder.DownloadEngineVersion(pb.DownloadEngineVersionRequest(name="engines/a/versions/1")):
        pass
    used = (await remote.builder.GetEngineVersion(request)).last_use_time.ToNanoseconds() / 1e9
    assert began - 1 <= used <= time.time() + 1
    listed = await remote.builder.ListEngineVersions(pb.ListEngineVersionsRequest(parent="engines/a"))
    assert listed.engine_versions[0].last_use_time.ToNanoseconds() / 1e9 == used


async def test_a_client_that_goes_away_frees_its_lease(remote: Remote) -> None:
    _publish(remote.store, "a", "k", 32 << 20)
    call = remote.builder.DownloadEngineVersion(pb.DownloadEngineVersionRequest(name="engines/a/versions/1"))
    await call.read()
    assert len(_leases(remote)) == 1
    call.cancel()
    async with asyncio.timeout(3):
        while _leases(remote):
            await asyncio.sleep(0.02)


async def test_a_lease_is_renewed_while_a_client_reads_slowly_and_ends_with_its_patience(tmp_path: Path) -> None:
    store = EngineStore(tmp_path)
    made = _publish(store, "a", "k")
    renewed: list[float] = []

    async def write(chunk: pb.FileChunk) -> None:
        (lease,) = [path for path in (tmp_path / "leases").iterdir() if not path.name.endswith(".used")]
        for _ in range(40):
            renewed.append(lease.stat().st_mtime)
            await asyncio.sleep(0.02)

    with pytest.raises(ResourceExhausted, match="did not read") as caught:
        await Files(store, renew_seconds=0.05, unread_seconds=0.5).send(made, (), write)
    assert caught.value.reason == "STREAM_NOT_READ"
    assert len(set(renewed)) > 3
    assert [path for path in (tmp_path / "leases").iterdir() if not path.name.endswith(".used")] == []


async def test_a_stalled_download_holds_a_bounded_amount(remote: Remote) -> None:
    """The daemon is this process: what it reads ahead for a client that does not read would show here."""
    _publish(remote.store, "a", "k", 64 << 20)
    call = remote.builder.DownloadEngineVersion(pb.DownloadEngineVersionRequest(name="engines/a/versions/1"))
    read_before = _bytes_read()
    await call.read()
    await asyncio.sleep(0.5)
    assert _bytes_read() - read_before < 32 << 20
    call.cancel()


def _bytes_read() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


# Garbage and quota


async def test_garbage_is_told_and_then_collected(remote: Remote) -> None:
    for key in range(2):
        _publish(remote.store, "a", f"k{key}", 2 << 20)
    remote.store.delete_version("a", 1)
    found = await remote.builder.CollectGarbage(pb.CollectGarbageRequest())
    assert (list(found.waiting_versions), list(found.removed_versions)) == (["engines/a/versions/1"], [])
    long_ago = time.time() - 300
    os.utime(remote.store.root / "engines" / "a" / "tombstones" / "1", (long_ago, long_ago))
    told = await remote.builder.CollectGarbage(pb.CollectGarbageRequest(validate_only=True))
    done = await remote.builder.CollectGarbage(pb.CollectGarbageRequest())
    for answer in (told, done):
        assert list(answer.removed_versions) == ["engines/a/versions/1"]
        assert answer.removed_blobs == 1
        assert answer.freed_bytes > 2 << 20
    assert abs(told.used_bytes - done.used_bytes) < 4096  # told: but for records
    assert done.quota_bytes == 0
    again = await remote.builder.CollectGarbage(pb.CollectGarbageRequest())
    assert (again.removed_blobs, list(again.removed_versions)) == (0, [])


async def test_above_the_quota_the_least_recently_used_goes_and_an_alias_holds(tmp_path: Path) -> None:
    async with running(settings(tmp_path, store_quota_bytes=5 << 20)) as remote:
        for key in range(3):
            _publish(remote.store, "a", f"k{key}", 2 << 20)
        remote.store.set_alias("a", "prod", 1)
        remote.store.lease("a", 2).release()
        found = await remote.builder.CollectGarbage(pb.CollectGarbageRequest())
        assert list(found.evicted_versions) == ["engines/a/versions/3"]
        assert found.quota_bytes == 5 << 20
        listed = await remote.builder.ListEngineVersions(pb.ListEngineVersionsRequest(parent="engines/a"))
        assert [version.name[-1] for version in listed.engine_versions] == ["2", "1"]


async def test_a_build_that_cannot_fit_says_so_with_the_numbers(
    tmp_path: Path, make_checkpoint: Callable[..., Path]
) -> None:
    checkpoint = make_checkpoint()
    chosen = settings(tmp_path, roots=(checkpoint.parent,), child=ChildSettings(), store_quota_bytes=1000)
    async with running(chosen) as remote:
        request = pb.BuildEngineRequest(engine_id="big", source=pb.CheckpointSource(path=str(checkpoint)))
        done = await remote.done(await remote.builder.BuildEngine(request), 60)
        error = from_status(done.error)
        assert error.reason == "STORE_QUOTA"
        assert int(error.metadata["needed_bytes"]) > 100_000
        assert error.metadata["quota_bytes"] == "1000"
        assert not (tmp_path / "store" / "engines" / "big" / "versions").exists()


async def test_collections_never_overlap(tmp_path: Path) -> None:
    class Counting(EngineStore):
        now, most = 0, 0

        def collect(self, validate_only: bool = False):
            Counting.now += 1
            Counting.most = max(Counting.most, Counting.now)
            time.sleep(0.05)
            found = super().collect(validate_only)
            Counting.now -= 1
            return found

    collector = Collector(Counting(tmp_path))
    calls = [asyncio.create_task(collector.collect()) for _ in range(5)]
    await asyncio.sleep(0.02)
    calls[0].cancel()  # its collection goes on, and the others still wait for it
    await asyncio.gather(*calls, return_exceptions=True)
    assert Counting.most == 1
