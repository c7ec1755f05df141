"""From a checkpoint to a served model: find or build its engine, then load it."""

from __future__ import annotations

from pathlib import Path

from tqdm import tqdm

from enginehouse.build import BuildHandle
from enginehouse.builder_client import BuilderClient
from enginehouse.connection import TlsConfig
from enginehouse.engine_types import BuildFinished, EngineVersion, StageProgress, StageStarted
from enginehouse.llm_args import LlmArgs
from enginehouse.model_client import ModelClient, ServedModel
from enginehouse.names import engine_id_for


def find_or_build(
    source: str | Path,
    builder: str | BuilderClient,
    models: ModelClient,
    args: LlmArgs,
    *,
    tls: TlsConfig | None,
    token: str | None,
    use_tqdm: bool,
) -> ServedModel:
    """The model that serves the checkpoint's engine. The builder returns an existing version with the same build key;
    a model that already serves that version under this name is used as it is."""
    client = builder if isinstance(builder, BuilderClient) else BuilderClient(builder, tls=tls, token=token)
    engine_id = args.engine_id or engine_id_for(source)
    try:
        handle = client.build(source, engine_id, **args.build_options())
        if use_tqdm:
            show_progress(handle, engine_id)
        version = handle.result()
    finally:
        if client is not builder:
            client.close()
    return load(version, models, args)


def load(version: EngineVersion, models: ModelClient, args: LlmArgs) -> ServedModel:
    """Uses the model that serves this version, or loads it: under the engine's name, or as `name-v2` where that name
    serves another version, which others may be using."""
    served = {model.name: model for model in models.models()}
    names = [args.model_name] if args.model_name else [version.engine, f"{version.engine}-v{version.number}"]
    for name in names:
        if (model := served.get(name)) and model.engine_version == version.name and model.state in ("ready", "loading"):
            return models.wait_ready(name, args.load_timeout)
    free = next((name for name in names if name not in served), names[-1])
    options = {**args.load_options(), "model": free}
    return models.load(version.name, timeout=args.load_timeout, **options)


def show_progress(handle: BuildHandle, engine_id: str) -> None:
    """A bar over the whole build, with the stage beside it."""
    with tqdm(total=100, desc=f"Building {engine_id}", unit="%", dynamic_ncols=True, leave=False) as bar:
        for event in handle.watch():
            detail = event.detail
            if isinstance(detail, StageStarted):
                bar.set_postfix_str(detail.stage)
            if isinstance(detail, StageStarted | StageProgress):
                bar.update(max(0.0, round(100 * detail.fraction, 1) - bar.n))
            elif isinstance(detail, BuildFinished):
                bar.update(100 - bar.n)
