"""What `import enginehouse` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys
import types

import enginehouse

PROBE = """
import sys
import enginehouse
heavy = {"torch", "transformers", "typer", "rich", "numpy", "msgspec", "uvloop"} & set(sys.modules)
assert not heavy, heavy
"""


def test_all_is_complete_and_sorted() -> None:
    public = {
        name
        for name, value in vars(enginehouse).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert set(enginehouse.__all__) == public
    constants = [name for name in enginehouse.__all__ if name.isupper()]
    classes = [name for name in enginehouse.__all__ if not name.isupper()]
    assert enginehouse.__all__ == sorted(constants) + sorted(classes)


def test_the_import_loads_nothing_heavy() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", PROBE], check=True, timeout=60)


def test_every_public_class_is_documented() -> None:
    missing = [
        name
        for name in enginehouse.__all__
        if isinstance(value := getattr(enginehouse, name), type) and not value.__doc__
    ]
    undocumented_errors = {cls.__name__ for cls in enginehouse.errors.BY_CODE.values()}
    assert set(missing) <= undocumented_errors
