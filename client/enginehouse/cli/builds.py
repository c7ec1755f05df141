"""`enginehouse builds`: what the builder is doing and has done."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from enginehouse.build import BuildHandle
from enginehouse.builder_client import BuilderClient
from enginehouse.cli import options, show
from enginehouse.cli.progress import watch_build
from enginehouse.engine_types import BuildStatus

app = typer.Typer(help="List, show, watch and cancel builds.", no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(help="The build's name, as `builds list` shows it.")]


def _find(client: BuilderClient, name: str) -> BuildHandle:
    return client.build_handle(name if "/" in name else f"operations/{name}")


@app.command("list")
def list_builds(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many; 0 for all.", min=0)] = 50,
    builder: options.Builder = options.BUILDER,
    json: options.Json = False,
) -> None:
    """List builds, the newest first."""
    with context.obj.builder(builder) as client:
        shown = islice(client.builds(limit or 1000), limit or None)
        found = [(handle.name, status) for handle in shown if (status := handle.status_seen())]
    if json:
        return show.print_json([{"name": name, **vars(status)} for name, status in found])
    rows = [
        (
            show.short_name(name),
            show.short_name(status.engine),
            status.stage + _how(status),
            f"{status.fraction:.0%}",
            show.when(status.create_time),
        )
        for name, status in found
    ]
    show.print_table(("BUILD", "ENGINE", "STAGE", "DONE", "CREATED"), rows, empty="There are no builds.")
    if limit and len(found) == limit:
        typer.echo(f"These are the newest {limit}; --limit shows more.", err=True)


def _how(status: BuildStatus) -> str:
    """What is special about where a build is."""
    if status.shares_operation:
        return f" (as {show.short_name(status.shares_operation)})"
    if status.reused:
        return " (reused)"
    return f" ({status.queue_position} before it)" if status.queue_position else ""


@app.command("show")
def show_build(
    context: typer.Context, name: Name, builder: options.Builder = options.BUILDER, json: options.Json = False
) -> None:
    """Show where one build is, and its error if it failed."""
    with context.obj.builder(builder) as client:
        handle = _find(client, name)
        status = handle.status()
        error = handle.error()
    if json:
        return show.print_json({"name": handle.name, **vars(status), "error": error})
    show.print_fields(
        [
            ("build", show.short_name(handle.name)),
            ("engine", show.short_name(status.engine)),
            ("stage", status.stage),
            ("done", f"{status.fraction:.0%}"),
            ("attempt", status.attempt),
            ("created", show.when(status.create_time)),
            ("ended", show.when(status.end_time)),
            ("peak memory", show.size(status.memory_peak_bytes) if status.memory_peak_bytes else ""),
            ("builds before it", status.queue_position),
            ("priority", status.priority),
            ("as build", show.short_name(status.shares_operation)),
            (
                "expected end",
                f"{show.when(status.expected_end_time)} ({show.remaining(status.expected_end_time)})"
                if status.expected_end_time
                else "",
            ),
            ("message", status.message),
            ("error", error.message if error else ""),
        ]
    )


@app.command("watch")
def watch(
    context: typer.Context,
    name: Name,
    builder: options.Builder = options.BUILDER,
    after: Annotated[int, typer.Option(help="Only events after this sequence.")] = 0,
    json: options.Json = False,
) -> None:
    """Watch a build to its end. With --json each event is a line."""
    with context.obj.builder(builder) as client:
        handle = _find(client, name)
        if json:
            for event in handle.watch(after):
                show.print_json({**vars(event), "kind": type(event.detail).__name__}, indent=None)
            return
        watch_build(handle)
        version = handle.result()
    typer.echo(f"Built {show.short_name(version.name)}")


@app.command("cancel")
def cancel(
    context: typer.Context, name: Name, builder: options.Builder = options.BUILDER, json: options.Json = False
) -> None:
    """Cancel a build; it leaves nothing behind."""
    with context.obj.builder(builder) as client:
        handle = _find(client, name)
        ended = handle.status().stage if handle.done else ""
        handle.cancel()
    if json:
        return show.print_json({"name": handle.name})
    short = show.short_name(handle.name)
    typer.echo(f"Build {short} had ended already: {ended}." if ended else f"Build {short} is being cancelled.")
