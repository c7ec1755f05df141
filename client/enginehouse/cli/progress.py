"""A build's progress: bars on a terminal, one line a stage elsewhere. It goes to standard error."""

from __future__ import annotations

import contextlib
import sys
import time

import typer

from enginehouse.build import BuildHandle
from enginehouse.cli import show
from enginehouse.engine_types import BuildDetail, BuildFinished, LogLine, MemorySample, StageProgress, StageStarted
from enginehouse.errors import EnginehouseError

ASK_SECONDS = 2.0


def watch_build(handle: BuildHandle) -> None:
    """Shows a build until it ends. Interrupted, it says how to go on: the build does not stop."""
    display = _Bars(_Remaining(handle)) if sys.stderr.isatty() else _Lines()
    if shared := handle.status().shares_operation:
        typer.echo(
            f"An identical build runs already: this one takes the result of {show.short_name(shared)}.", err=True
        )
    try:
        with display:
            for event in handle.watch():
                display.show(event.detail)
    except KeyboardInterrupt:
        name = show.short_name(handle.name)
        typer.echo(f"The build goes on. Watch it with:  enginehouse builds watch {name}", err=True)
        typer.echo(f"                   Cancel it with: enginehouse builds cancel {name}", err=True)
        raise


class _Remaining:
    """The time that a build is expected to take yet, asked for at most every two seconds."""

    def __init__(self, handle: BuildHandle) -> None:
        self._handle, self._asked, self._end = handle, 0.0, handle.status_seen().expected_end_time

    def __str__(self) -> str:
        if time.monotonic() - self._asked > ASK_SECONDS:
            self._asked = time.monotonic()
            with contextlib.suppress(EnginehouseError):  # a restart: the watch itself attaches again, or says so
                self._end = self._handle.status().expected_end_time
        return show.remaining(self._end)


class _Lines:
    """For logs and pipes."""

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *error: object) -> None: ...

    def show(self, detail: BuildDetail) -> None:
        if isinstance(detail, StageStarted):
            typer.echo(f"{detail.stage} ...", err=True)
        elif isinstance(detail, LogLine) and detail.level in ("warning", "error"):
            typer.echo(f"{detail.level}: {detail.text}", err=True)


class _Bars:
    """A bar for each stage, with the memory of the build's process beside the running one."""

    def __init__(self, remaining: _Remaining) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True, highlight=False),
        )
        self._task = self._progress.add_task("queued", total=None, note="")
        self._remaining = remaining

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, detail: BuildDetail) -> None:
        if isinstance(detail, StageStarted) and detail.stage != "queued":
            self._complete()
            self._task = self._progress.add_task(detail.stage, total=None, note="")
        elif isinstance(detail, StageProgress):
            total = detail.total or None
            note = ", ".join(filter(None, (_count(detail) if total else "", str(self._remaining))))
            self._progress.update(self._task, total=total, completed=detail.done, note=note)
        elif isinstance(detail, MemorySample):
            self._progress.update(self._task, note=f"{show.size(detail.current_bytes)} of memory")
        elif isinstance(detail, LogLine) and detail.level in ("warning", "error"):
            self._progress.console.print(f"{detail.level}: {detail.text}", markup=False)
        elif isinstance(detail, BuildFinished) and detail.error is None:
            self._complete()

    def _complete(self) -> None:
        self._progress.update(self._task, total=1, completed=1, note="")
        self._progress.stop_task(self._task)


def _count(progress: StageProgress) -> str:
    if progress.unit == "bytes":
        return f"{show.size(progress.done)} of {show.size(progress.total)}"
    return f"{progress.done:.0f} of {progress.total:.0f} {progress.unit}" if progress.unit else ""
