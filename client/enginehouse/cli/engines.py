"""`enginehouse engines`: what is in the engine store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from enginehouse.builder_client import BuilderClient
from enginehouse.cli import options, show
from enginehouse.cli.differences import Difference, differences
from enginehouse.engine_types import EngineVersion
from enginehouse.errors import DataLoss

app = typer.Typer(
    help="List, show, compare, verify, delete and download engines; set aliases; clear the store.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Ref = Annotated[str, typer.Argument(help="NAME (the latest version), NAME@VERSION or NAME@ALIAS.")]


@app.command("list")
def list_engines(
    context: typer.Context,
    engine: Annotated[str, typer.Argument(help="List this engine's versions instead; - for those of all.")] = "",
    deleted: Annotated[bool, typer.Option("--deleted", help="Deleted versions too, while their files last.")] = False,
    builder: options.Builder = options.BUILDER,
    json: options.Json = False,
) -> None:
    """List engines, or one engine's versions."""
    with context.obj.builder(builder) as client:
        if engine or deleted:
            return _list_versions(client, engine or "-", deleted, json)
        found = list(client.engines())
    if json:
        return show.print_json(found)
    rows = [
        (
            item.id,
            item.latest_version,
            item.version_count,
            ", ".join(f"{alias.id}={alias.version}" for alias in item.aliases),
            show.when(item.update_time),
        )
        for item in found
    ]
    headers = ("ENGINE", "LATEST", "VERSIONS", "ALIASES", "UPDATED")
    show.print_table(headers, rows, empty="There are no engines; make one with `enginehouse build`.")


def _list_versions(client: BuilderClient, engine: str, deleted: bool, json: bool) -> None:
    found = list(client.versions(engine, show_deleted=deleted))
    if json:
        return show.print_json(found)
    rows = [
        (
            show.short_name(item.name),
            ", ".join(target.name for target in item.targets) or "unreadable",
            item.dtype,
            show.size(item.size_bytes),
            "deleted" if item.delete_time else ", ".join(item.aliases),
            show.when(item.create_time),
            show.when(item.last_use_time),
        )
        for item in found
    ]
    headers = ("VERSION", "TARGETS", "DTYPE", "SIZE", "ALIASES", "CREATED", "LAST USED")
    show.print_table(headers, rows, empty="There are no versions.")


@app.command("show")
def show_version(
    context: typer.Context,
    ref: Ref,
    builder: options.Builder = options.BUILDER,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Build facts, libraries and files too.")] = False,
    json: options.Json = False,
) -> None:
    """Show one version."""
    with context.obj.builder(builder) as client:
        version = client.version(ref)
    if json:
        return show.print_json(version)
    show.print_fields(_fields(version))
    if verbose:
        _print_details(version)


def _fields(version: EngineVersion) -> list[tuple[str, object]]:
    targets = [f"{item.name} ({item.verification.replace('_', ' ') or 'unchecked'})" for item in version.targets]
    source = version.source
    limits = {name: value for name, value in vars(version.limits).items() if value} if version.limits else {}
    return [
        ("version", show.short_name(version.name)),
        ("architecture", version.architecture),
        ("dtype", version.dtype),
        ("quantization", version.quant_algo),
        ("targets", ", ".join(targets)),
        ("limits", ", ".join(f"{name} {value}" for name, value in limits.items())),
        ("features", ", ".join(version.features)),
        ("size", show.size(version.size_bytes)),
        ("verified", show.verified(version.verify_report)),
        ("aliases", ", ".join(version.aliases)),
        ("labels", ", ".join(f"{key}={value}" for key, value in version.labels.items())),
        ("created", show.when(version.create_time)),
        ("last used", show.when(version.last_use_time)),
        ("source", f"{source.location} {source.revision}".strip() if source else ""),
        ("source digest", version.source_digest),
        ("build key", version.build_key),
    ]


def _print_details(version: EngineVersion) -> None:
    typer.echo("\nbuild")
    show.print_fields([(f"  {name}", value) for name, value in sorted(version.build_facts.items())])
    typer.echo("\nlibraries")
    show.print_fields([(f"  {name}", value) for name, value in sorted(version.libraries.items())])
    typer.echo()
    rows = [(file.path, show.size(file.size_bytes), file.digest) for file in version.files]
    show.print_table(("FILE", "SIZE", "DIGEST"), rows, empty="No files.")


@app.command("diff")
def diff(
    context: typer.Context,
    a: Ref,
    b: Ref,
    builder: options.Builder = options.BUILDER,
    json: options.Json = False,
) -> None:
    """Show what differs between two versions. Exit code 0: nothing; 1: something (or it failed, and says so)."""
    with context.obj.builder(builder) as client:
        one, other = client.version(a), client.version(b)
    found = differences(one, other)
    if json:
        show.print_json({"a": one.name, "b": other.name, "differences": [row._asdict() for row in found]})
    elif found:
        show.print_table(("", show.short_name(one.name), show.short_name(other.name)), map(_shortened, found), empty="")
    else:
        typer.echo(f"{show.short_name(one.name)} and {show.short_name(other.name)} are the same.")
    if found:
        raise typer.Exit(1)


def _shortened(row: Difference) -> Difference:
    """Digests as far as a person compares them."""
    return Difference(*(re.sub(r"(:[0-9a-f]{12})[0-9a-f]{52}\b", r"\1...", part) for part in row))


@app.command("gc")
def collect_garbage(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")] = False,
    builder: options.Builder = options.BUILDER,
    json: options.Json = False,
) -> None:
    """Remove deleted versions that nobody reads and unused files, and bring the store below its quota."""
    with context.obj.builder(builder) as client:
        found = client.collect_garbage(validate_only=dry_run)
    if json:
        return show.print_json(found)
    would = "would be " if dry_run else ""
    for names, what in (
        (found.removed_versions, f"{would}removed"),
        (found.evicted_versions, f"{would}deleted for the quota; files go in two minutes"),
        (found.waiting_versions, "deleted; its files go after two minutes, once no reader holds them"),
    ):
        for name in names:
            typer.echo(f"{show.short_name(name)}  {what}")
    quota = f" of a quota of {show.size(found.quota_bytes)}" if found.quota_bytes else ""
    typer.echo(
        f"{show.size(found.freed_bytes)} {would}freed; the store {'would hold' if dry_run else 'holds'} "
        f"{show.size(found.used_bytes)}{quota}."
    )


@app.command("verify")
def verify(
    context: typer.Context, ref: Ref, builder: options.Builder = options.BUILDER, json: options.Json = False
) -> None:
    """Read every file of a version again and compare its digest."""
    with context.obj.builder(builder) as client:
        result = client.verify(ref)
    if json:
        show.print_json(result)
    elif result.intact:
        typer.echo(f"{show.short_name(result.name)} is intact: {result.files_checked} files")
    if not result.intact:
        problems = ", ".join(f"{item.path} ({item.problem})" for item in result.problems)
        raise DataLoss(
            f"{show.short_name(result.name)} is damaged: {problems}. Build it again with --force.",
            reason="ENGINE_DAMAGED",
        )


@app.command("delete")
def delete(
    context: typer.Context,
    ref: Annotated[str, typer.Argument(help="NAME@VERSION.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    builder: options.Builder = options.BUILDER,
    json: options.Json = False,
) -> None:
    """Delete one version. Servers that have it loaded keep it until they let go."""
    if "@" not in ref and "/" not in ref:
        raise typer.BadParameter("name one version: NAME@VERSION", param_hint="REF")
    if not yes and not json:
        typer.confirm(f"Delete {ref}?", abort=True)
    with context.obj.builder(builder) as client:
        version = client.delete_version(ref)
    show.print_json(version) if json else typer.echo(f"Deleted {show.short_name(version.name)}")


@app.command("alias")
def alias(
    context: typer.Context,
    engine: Annotated[str, typer.Argument(help="The engine.")],
    name: Annotated[str, typer.Argument(help="The alias; without one the aliases are listed.")] = "",
    version: Annotated[int, typer.Argument(help="The version to point it at.", min=0)] = 0,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the alias.")] = False,
    etag: Annotated[str, typer.Option(help="Only if the alias still has this etag.")] = "",
    builder: options.Builder = options.BUILDER,
    json: options.Json = False,
) -> None:
    """List an engine's aliases, point one at a version, or delete it."""
    with context.obj.builder(builder) as client:
        if name and version:
            set_to = client.set_alias(engine, name, version, etag)
            return show.print_json(set_to) if json else typer.echo(f"{engine}@{name} is now version {version}")
        if name and delete:
            client.delete_alias(engine, name, etag)
            return show.print_json({}) if json else typer.echo(f"Deleted {engine}@{name}")
        if name:
            raise typer.BadParameter("give the version to point it at, or --delete", param_hint="VERSION")
        found = list(client.aliases(engine))
    if json:
        return show.print_json(found)
    rows = [(item.id, item.version, item.etag, show.when(item.update_time)) for item in found]
    show.print_table(("ALIAS", "VERSION", "ETAG", "UPDATED"), rows, empty=f"{engine} has no aliases.")


@app.command("download")
def download(
    context: typer.Context,
    ref: Ref,
    directory: Annotated[Path, typer.Argument(help="Where to; it is made if need be.")],
    builder: options.Builder = options.BUILDER,
    json: options.Json = False,
) -> None:
    """Copy a version's files into a directory."""
    with context.obj.builder(builder) as client, show.byte_bar(f"Copying {ref}", json) as progress:
        version = client.download(ref, directory, progress=progress)
    show.print_json(version) if json else typer.echo(f"Copied {show.short_name(version.name)} to {directory}")
