"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from enginehouse.cli import build, builds, daemons, engines, generate, models
from enginehouse.cli.options import Access
from enginehouse.connection import TlsConfig

app = typer.Typer(
    name="enginehouse",
    help="Builds LLM engines as a service and serves them with in-flight batching.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"enginehouse {version('enginehouse')}")
        raise typer.Exit


@app.callback()
def access(
    context: typer.Context,
    token: Annotated[str | None, typer.Option(envvar="ENGINEHOUSE_TOKEN", help="Bearer token.")] = None,
    tls: Annotated[bool, typer.Option(envvar="ENGINEHOUSE_TLS", help="Speak TLS.")] = False,
    ca_cert: Annotated[str | None, typer.Option(envvar="ENGINEHOUSE_CA_CERT", help="PEM file of the CA.")] = None,
    cert: Annotated[str | None, typer.Option(help="PEM file of the client's certificate.")] = None,
    key: Annotated[str | None, typer.Option(help="PEM file of the client's key.")] = None,
    _version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Builds LLM engines as a service and serves them with in-flight batching."""
    secure = tls or ca_cert or cert
    context.obj = Access(token=token, tls=TlsConfig(ca_cert=ca_cert, cert=cert, key=key) if secure else None)


app.command("build")(build.build)
app.add_typer(builds.app, name="builds")
app.add_typer(engines.app, name="engines")
app.add_typer(models.app, name="models")
app.command("generate")(generate.generate)
app.command("builder")(daemons.builder)
app.command("inference")(daemons.inference)
