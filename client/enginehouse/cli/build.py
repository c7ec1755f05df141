"""`enginehouse build`: a checkpoint becomes an engine, with its progress on screen."""

from __future__ import annotations

from typing import Annotated

import typer

from enginehouse.build import BuildHandle, VerifyOptions
from enginehouse.cli import options, show
from enginehouse.cli.progress import watch_build
from enginehouse.configs import BuildConfig
from enginehouse.engine_types import EngineVersion
from enginehouse.errors import FailedPrecondition
from enginehouse.names import engine_id_for


def build(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="Checkpoint directory or .gguf file on the builder's machine, org/model, or org/repo:file.gguf."
        ),
    ],
    engine: Annotated[str, typer.Option("--engine", "-e", help="Engine to add a version to [from the source].")] = "",
    builder: options.Builder = options.BUILDER,
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    target: Annotated[list[str], typer.Option(help="torch, tensorrt or tensorrt-rtx; may be repeated [torch].")] = [],  # noqa: B006
    max_seq_len: Annotated[int | None, typer.Option(help="Most tokens of one sequence [the model's].")] = None,
    max_batch_size: Annotated[int | None, typer.Option(help="Most sequences in one step.")] = None,
    max_num_tokens: Annotated[int | None, typer.Option(help="Most tokens in one step.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub repository.")] = None,
    alias: Annotated[str, typer.Option(help="Alias to point at the version.")] = "",
    label: Annotated[list[str], typer.Option(help="KEY=VALUE kept with the version; may be repeated.")] = [],  # noqa: B006
    weights: Annotated[str, typer.Option(help="real, or dummy for benchmarks.")] = "real",
    verify: Annotated[bool, typer.Option(help="Compare the engine with the checkpoint.")] = True,
    force: Annotated[bool, typer.Option(help="Build even if this engine exists.")] = False,
    validate_only: Annotated[bool, typer.Option(help="Only check and estimate.")] = False,
    priority: Annotated[
        float | None, typer.Option(help="0 to 1 [0.5]; of waiting builds, higher ones come first.", min=0, max=1)
    ] = None,
    detach: Annotated[bool, typer.Option(help="Do not wait for the end.")] = False,
    json: options.Json = False,
) -> None:
    """Build an engine from a checkpoint, or find the one that is built already."""
    config = BuildConfig(
        dtype=None if dtype == "auto" else dtype,
        max_seq_len=max_seq_len,
        max_batch_size=max_batch_size,
        max_num_tokens=max_num_tokens,
    )
    with context.obj.builder(builder) as client:
        handle = client.build(
            source,
            engine or engine_id_for(source),
            build_config=config,
            targets=target,
            revision=revision,
            alias=alias,
            labels=options.labels(label),
            weights=weights,
            verify=None if verify else VerifyOptions(off=True),
            force=force,
            validate_only=validate_only,
            priority=priority,
        )
        if validate_only:
            return _show_estimate(handle, json)
        if detach:
            return _show_detached(handle, json)
        if not json:
            watch_build(handle)
        version = handle.result()
        reused = handle.status().reused
    show.print_json({"reused": reused, "version": version}) if json else _show_version(version, reused)


def _show_version(version: EngineVersion, reused: bool) -> None:
    name = show.short_name(version.name)
    typer.echo(f"{'Found' if reused else 'Built'} {name} ({show.size(version.size_bytes)})")
    if (checked := show.verified(version.verify_report)) and not reused:
        typer.echo(f"Verified: {checked}")
    typer.echo(f"Load it with: enginehouse models load {name}")


def _show_estimate(handle: BuildHandle, json: bool) -> None:
    status, existing = handle.status(), _existing(handle)
    estimate = status.estimate
    if json:
        return show.print_json({"estimate": estimate, "build_key": status.build_key, "existing": existing})
    typer.echo("The build is valid.")
    for note in filter(None, status.message.split("\n")):
        typer.echo(f"warning: {note}", err=True)
    if existing:
        typer.echo(f"{show.short_name(existing)} has its key already: a build would return it, unless it is forced.")
    if estimate is not None:
        disk, memory = show.size(estimate.disk_bytes), show.size(estimate.memory_bytes)
        typer.echo(f"Estimate: {memory} of memory, {disk} of disk, {show.seconds(estimate.duration)}")


def _existing(handle: BuildHandle) -> str:
    """The version that has the build's key; empty for none."""
    try:
        return handle.result().name
    except FailedPrecondition:
        return ""


def _show_detached(handle: BuildHandle, json: bool) -> None:
    name = show.short_name(handle.name)
    if json:
        return show.print_json({"name": handle.name})
    typer.echo(f"Build {name} is queued. Watch it with: enginehouse builds watch {name}")
