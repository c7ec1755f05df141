"""Structured logs on stderr: lines for people on a terminal, JSON elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal, TextIO, cast

import structlog

Level = Literal["debug", "info", "warning", "error"]


def setup(level: Level = "info", stream: TextIO | None = None, json: bool | None = None) -> None:
    """Configures structlog and routes the standard library's logging through it. Call once at start.

    Args:
        level: the least level that is written.
        stream: where to; None is stderr.
        json: JSON lines or the console form; None decides by whether the stream is a terminal.
    """
    out = stream or sys.stderr
    as_json = not out.isatty() if json is None else json
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    final = _json_form() if as_json else _console_form(out.isatty())
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[meta, *final]))
    logging.basicConfig(handlers=[handler], level=max(threshold, logging.WARNING), force=True)


def _json_form() -> list[Any]:
    # without locals: they hold prompts and keys
    tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer(default=str)]


def _console_form(colors: bool) -> list[Any]:
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]


def logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines carry `component=name` and what was bound for the current RPC."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger(component=name))
