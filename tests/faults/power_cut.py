"""What a disk may hold after the power was cut, from a log of durable calls (`shim.recorded`).

The rules are POSIX's, not those of one file system: a file's data is safe up to its last fsync; an entry of a
directory (create, link, rename, unlink, mkdir) once that directory was fsynced after the change. Everything later may
or may not have come to the disk. A rename is one change to both of its directories, as in every journal.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.shim import Call, Kind


@dataclass(eq=False)
class Node:
    """A file or a directory. `safe`: the file's bytes at its last fsync; `writes`: what came after, in order."""

    folder: bool
    data: bytearray = field(default_factory=bytearray)
    safe: bytes = b""
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)


@dataclass(eq=False)
class Change:
    """A change of entries: each `(folder, name, node)` sets the name, or removes it when the node is None."""

    entries: tuple[tuple[Node, str, Node | None], ...]
    safe: bool = False


Keep = Callable[[Change], bool]
Bytes = Callable[[Node], bytes]


class Disk:
    """Replays calls below `root`, which was empty and durable before the first."""

    def __init__(self, root: str) -> None:
        self._root, self._top = root, Node(folder=True)
        self._changes: list[Change] = []

    def play(self, call: Call, lying: bool = False) -> None:
        """Takes the next call. `lying`: fsync does nothing."""
        assert call.kind != Kind.TRUNCATE, f"not modelled: {call}"
        if call.kind == Kind.FSYNC:
            if not lying and (node := self._find(call.path)):
                self._sync(node)
        elif call.kind in _PLAY:
            _PLAY[call.kind](self, call)

    def write_to(self, target: Path, keep: Keep, content: Bytes) -> None:
        """Makes the tree of a disk that has all safe changes and those of the others that `keep` accepts."""
        folders: dict[Node, dict[str, Node]] = {}
        for change in self._changes:
            if change.safe or keep(change):
                for folder, name, node in change.entries:
                    entries = folders.setdefault(folder, {})
                    if node is None:
                        entries.pop(name, None)
                    else:
                        entries[name] = node
        _materialise(self._top, target, folders, content, {})

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._top
        for part in self._parts(path):
            node = node.entries.get(part) if node else None
        return node

    def _parts(self, path: str) -> list[str]:
        return path.removeprefix(self._root).split("/")[1:] if path != self._root else []

    def _parent(self, path: str) -> tuple[Node, str]:
        folder = self._find(os.path.dirname(path))
        assert folder is not None, f"no folder for {path}"
        return folder, os.path.basename(path)

    def _change(self, *entries: tuple[Node, str, Node | None]) -> None:
        self._changes.append(Change(entries))
        for folder, name, node in entries:
            if node is None:
                folder.entries.pop(name, None)
            else:
                folder.entries[name] = node

    def _sync(self, node: Node) -> None:
        if not node.folder:
            node.safe, node.writes = bytes(node.data), []
        for change in self._changes:
            change.safe = change.safe or any(folder is node for folder, _, _ in change.entries)

    def _open(self, call: Call) -> None:
        node = self._find(call.path)
        if node is None:
            folder, name = self._parent(call.path)
            self._change((folder, name, Node(folder=False)))
        elif call.flags & os.O_TRUNC:
            node.data.clear()
            node.writes.append((-1, b""))

    def _write(self, call: Call) -> None:
        node = self._find(call.path)
        if node is None:  # the file was unlinked while open
            return
        end = call.offset + len(call.data)
        node.data.extend(bytes(max(0, end - len(node.data))))
        node.data[call.offset : end] = call.data
        node.writes.append((call.offset, call.data))

    def _rename(self, call: Call) -> None:
        (source, old), (target, new) = self._parent(call.path), self._parent(call.other)
        node = source.entries[old]
        if target.entries.get(new) is not node:  # two links to one file: rename does nothing
            self._change((source, old, None), (target, new, node))

    def _link(self, call: Call) -> None:
        self._change((*self._parent(call.other), self._find(call.path)))

    def _mkdir(self, call: Call) -> None:
        self._change((*self._parent(call.path), Node(folder=True)))

    def _remove(self, call: Call) -> None:
        self._change((*self._parent(call.path), None))


_PLAY = {
    Kind.OPEN: Disk._open,
    Kind.WRITE: Disk._write,
    Kind.RENAME: Disk._rename,
    Kind.LINK: Disk._link,
    Kind.MKDIR: Disk._mkdir,
    Kind.UNLINK: Disk._remove,
    Kind.RMDIR: Disk._remove,
}


def _materialise(
    node: Node, path: Path, folders: dict[Node, dict[str, Node]], content: Bytes, made: dict[Node, Path]
) -> None:
    """Writes the tree. A folder that two kept renames left in two places stays in the first."""
    if node in made:
        if not node.folder:
            os.link(made[node], path)
        return
    made[node] = path
    if not node.folder:
        path.write_bytes(content(node))
        return
    path.mkdir(exist_ok=True)
    for name, entry in sorted(folders.get(node, {}).items()):
        _materialise(entry, path / name, folders, content, made)


def nothing_more(change: Change) -> bool:
    """Keeps only what is safe."""
    return False


def everything(change: Change) -> bool:
    """Keeps all that was done."""
    return True


def some(seed: int) -> Keep:
    """Keeps a random part: per folder either a prefix of its changes or any subset, each change with a probability
    that the seed draws."""
    chance = random.Random(seed)
    share, prefixes = chance.random(), chance.random() < 0.5
    ended: set[Node] = set()

    def keep(change: Change) -> bool:
        folders = [folder for folder, _, _ in change.entries]
        blocked = prefixes and any(folder in ended for folder in folders)
        if not blocked and chance.random() < share:
            return True
        ended.update(folders)
        return False

    return keep


def safe_bytes(node: Node) -> bytes:
    """Only the data that was synced."""
    return node.safe


def all_bytes(node: Node) -> bytes:
    """All data that was written."""
    return bytes(node.data)


def torn_bytes(seed: int) -> Bytes:
    """The synced data, some of the later writes, and zeros where the length came to the disk before the data."""
    chance = random.Random(seed)
    return lambda node: _apply(node.safe, node.writes, chance)


def _apply(safe: bytes, writes: Iterable[tuple[int, bytes]], chance: random.Random) -> bytes:
    data = bytearray(safe)
    for offset, written in writes:
        fate = chance.choice(("kept", "lost", "half", "zeros"))
        if offset < 0:
            data = bytearray() if fate != "lost" else data
        elif fate != "lost":
            part = written if fate == "kept" else written[: len(written) // 2]
            part = bytes(len(written)) if fate == "zeros" else part
            data.extend(bytes(max(0, offset + len(part) - len(data))))
            data[offset : offset + len(part)] = part
    return bytes(data)
