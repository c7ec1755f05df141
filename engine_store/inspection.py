"""Reading a version again from the first byte to the last, and telling what is not as it was published."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine_store.digests import digest_bytes, digest_file
from engine_store.layout import MANIFEST, Layout
from engine_store.manifest import File, Manifest
from engine_store.names import VersionRef, check_file_path
from engine_store.publish import Publisher
from engine_store.reading import Reader, manifest_bytes
from enginehouse.errors import DataLoss

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes of the whole."""


class Problem(NamedTuple):
    """A file that is not as the manifest says. `problem`: "missing", "size", "digest" or "unexpected"; `expected` and
    `found` are sizes or digests, empty where there is none."""

    path: str
    problem: str
    expected: str = ""
    found: str = ""


class Inspector:
    """The checking of one store's versions."""

    def __init__(self, layout: Layout, reader: Reader, publisher: Publisher) -> None:
        self._layout, self._reader, self._publisher = layout, reader, publisher

    def manifest(self, manifest: Manifest) -> Problem | None:
        """What is wrong with `engine.json`: its digest is in the record under its build key. `expected` is empty when
        no record names this version under the key that the manifest states."""
        record = self._publisher.record_of(manifest)
        expected = record.manifest if record else ""
        try:
            found = digest_bytes(manifest_bytes(self._layout, VersionRef(manifest.name, manifest.version)))
        except FileNotFoundError:
            return Problem(MANIFEST, "missing", expected)
        return None if found == expected else Problem(MANIFEST, "digest", expected, found)

    def inspect(self, manifest: Manifest, progress: Progress | None) -> list[Problem]:
        """See `EngineStore.inspect`."""
        total, done, problems = sum(file.size_bytes for file in manifest.files), 0, [self.manifest(manifest)]

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, total)

        problems += [self._file(manifest, file, advance) for file in manifest.files]
        unexpected = [Problem(path, "unexpected") for path in self.unexpected(manifest)]
        return [problem for problem in problems if problem is not None] + unexpected

    def unexpected(self, manifest: Manifest) -> list[str]:
        """The paths of files that lie in the version and are none of the manifest's, sorted."""
        folder = self._layout.version(manifest.name, manifest.version)
        listed = {MANIFEST, *(file.path for file in manifest.files)}
        there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
        return sorted(there - listed)

    def _file(self, manifest: Manifest, file: File, advance: Callable[[int], None]) -> Problem | None:
        check_file_path(file.path)
        try:
            found = digest_file(self._reader.file_path(manifest, file), progress=advance)
        except (DataLoss, FileNotFoundError):
            return Problem(file.path, "missing", file.digest)
        if found.size_bytes != file.size_bytes:
            return Problem(file.path, "size", str(file.size_bytes), str(found.size_bytes))
        return None if found.digest == file.digest else Problem(file.path, "digest", file.digest, found.digest)


def damaged(manifest: Manifest, problem: Problem) -> DataLoss:
    """The error of a version one of whose files is not as it was published."""
    sides = {"expected": problem.expected, "found": problem.found} if problem.found else {}
    return DataLoss(
        f"`{problem.path}` of `{manifest.name}` version {manifest.version} is damaged ({problem.problem}); "
        "build it again with `force`, then delete this version.",
        reason="FILE_DAMAGED",
        metadata={
            "engine": manifest.name,
            "version": manifest.version,
            "file": problem.path,
            "problem": problem.problem,
            **sides,
        },
    )
