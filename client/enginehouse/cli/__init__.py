"""The command line, `enginehouse`. `main` is its entry; everything else is imported when it runs."""

from __future__ import annotations

import contextlib
import json
import os
import sys

from enginehouse.errors import EnginehouseError


def main() -> None:
    """Runs a command. Exit code 0: done; 1: it failed, with one line that says what to do; 2: wrong usage;
    130: interrupted."""
    from enginehouse.cli.app import app

    try:
        app(prog_name="enginehouse")
    except EnginehouseError as error:
        details = {"code": error.code.name, "reason": error.reason, "metadata": error.metadata}
        _fail(error.message, 1, details)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (TypeError, ValueError) as error:
        if not _is_ours(error):
            raise
        _fail(str(error), 2, {"code": "USAGE"})
    except TimeoutError as error:
        _fail(str(error), 1, {"code": "TIMEOUT"})
    except OSError as error:
        _fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 1, {"code": "OS_ERROR"})


def _is_ours(error: BaseException) -> bool:
    """Whether a check of an argument raised it, and not a mistake in this program."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return module.startswith("enginehouse.") and not module.startswith("enginehouse._gen")


def _fail(message: str, exit_code: int, details: dict[str, object]) -> None:
    if "--json" in sys.argv:
        print(json.dumps({"error": {"message": message, **details}}), file=sys.stderr)
    else:
        print(f"Error: {message}", file=sys.stderr)
    sys.exit(exit_code)
