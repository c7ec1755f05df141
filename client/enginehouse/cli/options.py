"""Options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

from enginehouse.builder_client import BuilderClient
from enginehouse.connection import BUILDER_TARGET, INFERENCE_TARGET, TlsConfig
from enginehouse.model_client import ModelClient

Builder: TypeAlias = Annotated[
    str, typer.Option("--builder", envvar="ENGINEHOUSE_BUILDER", help="HOST:PORT of the builder daemon.")
]
Target: TypeAlias = Annotated[
    str, typer.Option("--target", envvar="ENGINEHOUSE_TARGET", help="HOST:PORT of the inference daemon.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BUILDER: str = BUILDER_TARGET
TARGET: str = INFERENCE_TARGET


@dataclass(frozen=True, kw_only=True)
class Access:
    """How daemons are spoken with."""

    token: str | None = None
    tls: TlsConfig | None = None

    def builder(self, target: str) -> BuilderClient:
        return BuilderClient(target, tls=self.tls, token=self.token)

    def models(self, target: str) -> ModelClient:
        return ModelClient(target, tls=self.tls, token=self.token)


def labels(pairs: list[str]) -> dict[str, str]:
    """{"a": "b"} from ["a=b"]."""
    for pair in pairs:
        if "=" not in pair:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)
