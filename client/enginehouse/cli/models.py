"""`enginehouse models`: what an inference daemon serves."""

from __future__ import annotations

from typing import Annotated

import typer

from enginehouse.cli import options, show
from enginehouse.configs import KvCacheConfig, SchedulerConfig
from enginehouse.model_client import ServedModel

app = typer.Typer(help="List, show, load and unload models.", no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(help="The served name.")]


@app.command("list")
def list_models(context: typer.Context, target: options.Target = options.TARGET, json: options.Json = False) -> None:
    """List the models of an inference daemon."""
    with context.obj.models(target) as client:
        found = list(client.models())
    if json:
        return show.print_json(found)
    rows = [
        (
            item.name,
            show.short_name(item.engine_version),
            item.state,
            item.load_facts.target if item.load_facts else "",
            item.load_facts.dtype if item.load_facts else "",
            item.load_facts.kv_cache_tokens if item.load_facts else "",
        )
        for item in found
    ]
    headers = ("MODEL", "ENGINE", "STATE", "TARGET", "DTYPE", "KV TOKENS")
    show.print_table(headers, rows, empty="No model is loaded; load one with `enginehouse models load`.")


@app.command("show")
def show_model(
    context: typer.Context, model: Name, target: options.Target = options.TARGET, json: options.Json = False
) -> None:
    """Show one model and how busy it is."""
    with context.obj.models(target) as client:
        found = client.model(model)
        load = client.load_of(model) if found.state == "ready" else ()
    if json:
        return show.print_json({"model": found, "load": load})
    facts = found.load_facts
    show.print_fields(
        [
            ("model", found.name),
            ("engine", show.short_name(found.engine_version)),
            ("state", found.state),
            ("message", found.state_message),
            ("architecture", found.architecture),
            ("target", facts.target if facts else ""),
            ("devices", ", ".join(facts.devices) if facts else ""),
            ("dtype", facts.dtype if facts else ""),
            ("weights", show.size(facts.weights_bytes) if facts and facts.weights_bytes else ""),
            ("kv cache", show.size(facts.kv_cache_bytes) if facts and facts.kv_cache_bytes else ""),
            ("kv cache tokens", facts.kv_cache_tokens if facts else ""),
            ("load time", show.seconds(facts.load_duration) if facts else ""),
            ("running", load[0].running_requests if load else ""),
            ("queued", load[0].queued_requests if load else ""),
        ]
    )


@app.command("load")
def load(
    context: typer.Context,
    engine: Annotated[str, typer.Argument(help="NAME (the latest version), NAME@VERSION or NAME@ALIAS.")],
    target: options.Target = options.TARGET,
    name: Annotated[str, typer.Option(help="The served name [the engine's].")] = "",
    form: Annotated[str, typer.Option(help="torch, tensorrt or tensorrt-rtx [the fastest].")] = "",
    dtype: Annotated[str, typer.Option(help="The type to compute in.")] = "auto",
    device: Annotated[list[str], typer.Option(help="cpu or cuda:0; may be repeated.")] = [],  # noqa: B006
    max_batch_size: Annotated[int | None, typer.Option(help="Most sequences in one step.")] = None,
    max_num_tokens: Annotated[int | None, typer.Option(help="Most tokens in one step.")] = None,
    max_seq_len: Annotated[int | None, typer.Option(help="Most tokens of one sequence.")] = None,
    kv_cache_tokens: Annotated[int | None, typer.Option(help="Most tokens in the KV cache.")] = None,
    policy: Annotated[str, typer.Option(help="GUARANTEED_NO_EVICT, MAX_UTILIZATION or STATIC_BATCH.")] = "",
    replace: Annotated[bool, typer.Option(help="Take the place of a model of this name.")] = False,
    json: options.Json = False,
) -> None:
    """Load an engine and wait until it takes requests."""
    kv_cache = KvCacheConfig(max_tokens=kv_cache_tokens) if kv_cache_tokens is not None else None
    scheduler = SchedulerConfig(capacity_scheduler_policy=policy) if policy else None
    with context.obj.models(target) as client:
        model = client.load(
            engine,
            model=name,
            target=form,
            dtype=dtype,
            devices=device,
            max_batch_size=max_batch_size,
            max_num_tokens=max_num_tokens,
            max_seq_len=max_seq_len,
            kv_cache_config=kv_cache,
            scheduler_config=scheduler,
            replace=replace,
        )
    show.print_json(model) if json else typer.echo(_loaded(model))


def _loaded(model: ServedModel) -> str:
    text = f"Loaded {show.short_name(model.engine_version)} as {model.name}"
    if (facts := model.load_facts) is None:
        return text
    parts = [facts.target, ", ".join(facts.devices), facts.dtype, show.seconds(facts.load_duration)]
    return f"{text} ({', '.join(filter(None, parts))})"


@app.command("unload")
def unload(
    context: typer.Context,
    model: Name,
    target: options.Target = options.TARGET,
    grace: Annotated[float | None, typer.Option(help="Seconds for live requests to finish [30].", min=0)] = None,
    json: options.Json = False,
) -> None:
    """Unload a model once its live requests have ended."""
    with context.obj.models(target) as client:
        client.unload(model, grace=grace)
    show.print_json({"model": model}) if json else typer.echo(f"Unloaded {model}")
