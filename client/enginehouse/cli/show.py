"""Tables and JSON on standard output."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import typer

from enginehouse.engine_types import VerifyReport
from enginehouse.errors import EnginehouseError


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Dataclasses as objects, datetimes in ISO form. `indent` None: one line."""
    typer.echo(json.dumps(value, default=_plain, indent=indent))


def _plain(value: Any) -> Any:
    if isinstance(value, EnginehouseError):
        return {"message": value.message, "reason": value.reason, "metadata": value.metadata}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A plain table; `empty` is said when there are no rows."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 1000  # a pipe has no width: one row, one line
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold", no_wrap=not table.columns)  # names are for copying
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    if table.row_count:
        console.print(table)
    else:
        typer.echo(empty)


def print_fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line; what is empty is left out."""
    shown = [(name, value) for name, value in pairs if value not in (None, "", (), {}, 0)]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        typer.echo(f"{name:<{width}}  {value}")


@contextlib.contextmanager
def byte_bar(title: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar over bytes on a terminal's standard error; nothing elsewhere. Yields what takes (done, total)."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def safe(text: str) -> str:
    """Generated text for a terminal: control characters could move its cursor or change its title."""
    if not sys.stdout.isatty():
        return text
    return "".join(char if char in "\n\t" or char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def size(count: float) -> str:
    """Bytes for people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError(count)


def when(time: datetime | None) -> str:
    """A time on this machine's clock."""
    return "" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def seconds(duration: float | None) -> str:
    return "" if duration is None else f"{duration:.1f} s"


def remaining(end: datetime | None) -> str:
    """How long until a time, for people: "about 20 s left"."""
    if end is None:
        return ""
    left = max(0.0, (end - datetime.now(UTC)).total_seconds())
    return f"about {left:.0f} s left" if left < 90 else f"about {left / 60:.0f} min left"


def verified(report: VerifyReport | None) -> str:
    """What the verification found. Below float32 rounding alone turns near ties, which is no fault."""
    if report is None:
        return ""
    text = f"{report.equal_tokens} of {report.tokens} greedy tokens equal the checkpoint's"
    return text if report.equal_tokens == report.tokens else f"{text} in float32; the rest is within rounding"


def short_name(name: str) -> str:
    """engines/a/versions/1 as a@1; operations/x as x."""
    parts = name.split("/")
    return f"{parts[1]}@{parts[3]}" if len(parts) == 4 else parts[-1]
