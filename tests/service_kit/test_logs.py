from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from service_kit import logs


@pytest.fixture(autouse=True)
def restore():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level


def test_lines_are_json_where_nobody_looks():
    out = io.StringIO()
    logs.setup(stream=out)
    with structlog.contextvars.bound_contextvars(rpc="/a/b"):
        logs.logger("here").info("it happened", count=2)
    line = json.loads(out.getvalue())
    assert (line["event"], line["level"], line["component"], line["rpc"], line["count"]) == (
        "it happened",
        "info",
        "here",
        "/a/b",
        2,
    )


def test_the_level_filters_and_tracebacks_are_kept():
    out = io.StringIO()
    logs.setup(level="warning", stream=out)
    logs.logger("here").info("quiet")
    try:
        raise KeyError("lost")
    except KeyError:
        logs.logger("here").exception("failed")
    line = json.loads(out.getvalue())
    assert line["event"] == "failed"
    assert line["exception"][0]["exc_type"] == "KeyError"
    assert "locals" not in line["exception"][0]["frames"][0]


def test_the_standard_librarys_lines_look_the_same():
    out = io.StringIO()
    logs.setup(stream=out)
    logging.getLogger("other").warning("from %s", "elsewhere")
    line = json.loads(out.getvalue())
    assert (line["event"], line["level"]) == ("from elsewhere", "warning")


def test_people_get_readable_lines():
    out = io.StringIO()
    logs.setup(stream=out, json=False)
    logs.logger("here").info("it happened", count=2)
    assert "it happened" in out.getvalue()
    assert "count=2" in out.getvalue()
