"""How much memory a build's processes hold, from /proc."""

from __future__ import annotations

from pathlib import Path


def anonymous_bytes(pid: int) -> int:
    """RssAnon of the process and all its descendants, in bytes; 0 when it is gone. Mapped files do not count: the
    kernel can drop them."""
    return sum(_rss_anon(each) for each in _tree(pid))


def _tree(pid: int) -> list[int]:
    found = [pid]
    for each in found:  # grows while it is walked
        for task in _entries(Path(f"/proc/{each}/task")):
            found.extend(int(child) for child in _text(task / "children").split())
    return found


def _rss_anon(pid: int) -> int:
    for line in _text(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def _entries(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
