"""`enginehouse builder` and `enginehouse inference`: start the daemons. They are imported here alone."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from enginehouse.errors import FailedPrecondition

Host: TypeAlias = Annotated[str, typer.Option(help="Address to listen on.")]
Store: TypeAlias = Annotated[
    Path, typer.Option(envvar="ENGINEHOUSE_STORE", help="Directory of the engine store, shared by both daemons.")
]
Pem: TypeAlias = Annotated[Path | None, typer.Option(help="PEM file.", exists=True, dir_okay=False)]
Insecure: TypeAlias = Annotated[
    bool, typer.Option("--insecure", help="Speak plain text to other machines too, on a trusted network.")
]
Grace: TypeAlias = Annotated[float, typer.Option(help="Seconds for live calls to finish at the end.", min=0)]
Log: TypeAlias = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
_DATA = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "enginehouse"


def builder(
    store: Store = _DATA / "store",
    state: Annotated[Path, typer.Option(help="The builder's own directory: queue and downloads.")] = _DATA / "builder",
    root: Annotated[list[Path], typer.Option(help="Checkpoints are read below it; may be repeated.")] = [],  # noqa: B006
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any free one.", min=0, max=65535)] = 50051,
    offline: Annotated[bool, typer.Option("--offline", help="Never ask the hub.")] = False,
    max_concurrent_builds: Annotated[int, typer.Option(help="Builds at the same time.", min=1)] = 1,
    max_queued_builds: Annotated[int, typer.Option(help="Builds that may wait.", min=1)] = 100,
    memory_limit_gib: Annotated[float, typer.Option(help="Stop a build above this; 0 for no limit.", min=0)] = 0,
    memory_budget_gib: Annotated[
        float, typer.Option(help="Estimated memory of all running builds together; 0 for no bound.", min=0)
    ] = 0,
    store_quota_gib: Annotated[
        float, typer.Option(help="Above it the versions used longest ago are deleted; 0 for no quota.", min=0)
    ] = 0,
    history_days: Annotated[float, typer.Option(help="How long ended builds are remembered.", min=0)] = 30,
    max_history: Annotated[int, typer.Option(help="How many ended builds are remembered.", min=0)] = 1000,
    tls_cert: Pem = None,
    tls_key: Pem = None,
    client_ca: Pem = None,
    insecure: Insecure = False,
    grace: Grace = 30.0,
    log_level: Log = "info",
) -> None:
    """Start the builder daemon."""
    daemon = _import("builder", "builder_service.daemon")
    process = _import("builder", "builder_service.queue.process")
    settings = daemon.BuilderSettings(
        store=store,
        state=state,
        roots=tuple(root),
        server=_server(host, port, tls_cert, tls_key, client_ca, insecure, grace, daemon="builder"),
        child=process.ChildSettings(memory_limit=int(memory_limit_gib * 2**30)),
        max_concurrent_builds=max_concurrent_builds,
        max_queued_builds=max_queued_builds,
        memory_budget=int(memory_budget_gib * 2**30),
        store_quota_bytes=int(store_quota_gib * 2**30),
        history_seconds=history_days * 86_400,
        max_history=max_history,
        offline=offline,
    )
    _setup_logs("builder", log_level)
    daemon.main(settings)


def inference(
    store: Store = _DATA / "store",
    state: Annotated[
        Path | None, typer.Option(help="Directory on local disk in which the served models are kept over a restart.")
    ] = None,
    model: Annotated[list[str], typer.Option(help="[NAME=]ENGINE[@VERSION|@ALIAS] to load; may be repeated.")] = [],  # noqa: B006
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any free one.", min=0, max=65535)] = 50052,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Threads of a CPU runner.", min=1)] = None,
    max_batch_size: Annotated[int, typer.Option(help="Most sequences in one step.", min=1)] = 256,
    max_num_tokens: Annotated[int, typer.Option(help="Most tokens in one step.", min=1)] = 2048,
    max_seq_len: Annotated[int | None, typer.Option(help="Most tokens of one sequence.", min=1)] = None,
    kv_cache_tokens: Annotated[int | None, typer.Option(help="Most tokens in the KV cache.", min=1)] = None,
    policy: Annotated[str, typer.Option(help="GUARANTEED_NO_EVICT, MAX_UTILIZATION or STATIC_BATCH.")] = (
        "GUARANTEED_NO_EVICT"
    ),
    max_queue_size: Annotated[int, typer.Option(help="Requests that may wait.", min=0)] = 1024,
    tls_cert: Pem = None,
    tls_key: Pem = None,
    client_ca: Pem = None,
    insecure: Insecure = False,
    grace: Grace = 30.0,
    log_level: Log = "info",
) -> None:
    """Start the inference daemon."""
    daemon = _import("inference", "inference_service.daemon")
    config = _import("inference", "inference_service.config")
    defaults = config.ModelConfig(
        kv_cache=config.KvCacheConfig(max_tokens=kv_cache_tokens),
        scheduler=config.SchedulerConfig(
            policy=_one_of("--policy", policy, "GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"),
            max_batch_size=max_batch_size,
            max_num_tokens=max_num_tokens,
        ),
        runner=config.RunnerConfig(
            device=_one_of("--device", device, "auto", "cpu", "cuda"),
            dtype=_one_of("--dtype", dtype, "auto", "float32", "bfloat16", "float16"),
            num_threads=threads,
        ),
        max_seq_len=max_seq_len,
        max_queue_size=max_queue_size,
    )
    settings = daemon.InferenceSettings(
        server=_server(host, port, tls_cert, tls_key, client_ca, insecure, grace, daemon="inference"),
        store=store,
        models=tuple(model),
        state=state,
        config=defaults,
    )
    _setup_logs("inference", log_level)
    daemon.main(settings)


def _server(
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    insecure: bool,
    grace: float,
    *,
    daemon: str,
) -> Any:
    return _import(daemon, "service_kit.server").ServerSettings(
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        client_ca=client_ca,
        insecure=insecure,
        grace_seconds=grace,
    )


def _setup_logs(daemon: str, level: str) -> None:
    _import(daemon, "service_kit.logs").setup(_one_of("--log-level", level, "debug", "info", "warning", "error"))


def _one_of(option: str, value: str, *choices: str) -> str:
    if value not in choices:
        raise typer.BadParameter(f"give {', '.join(choices[:-1])} or {choices[-1]}", param_hint=option)
    return value


def _import(extra: str, module: str) -> Any:
    """The module, or an error that names the extra whose packages are missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("builder_service", "inference_service", "service_kit"):
            raise
        raise FailedPrecondition(
            f"The {extra} daemon needs the package {error.name}: pip install 'enginehouse[{extra}]'",
            reason="EXTRA_MISSING",
            metadata={"extra": extra, "package": error.name},
        ) from error
