"""docs/cases.md tells the truth: each case names tests, and each test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = re.findall(r"^\| ([BM]\d+) [^|]*\|[^|]+\|([^|]+)\|$", (ROOT / "docs" / "cases.md").read_text(), re.MULTILINE)
CASES = ["B42", "B45", "B46", "B47", "B48", "B50", "B51", "B61", "M8"]


@cache
def functions_in(path: str) -> set[str]:
    """The test functions at the top level of a file."""
    body = ast.parse((ROOT / path).read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_case_has_a_row() -> None:
    assert [case for case, _ in ROWS] == CASES


@pytest.mark.parametrize(("case", "cell"), ROWS, ids=[case for case, _ in ROWS])
def test_the_tests_of_a_case_exist(case: str, cell: str) -> None:
    ids = re.findall(r"`([^`]+)`", cell)
    assert ids, case
    missing = [each for each in ids if each.split("::")[1] not in functions_in(each.split("::")[0])]
    assert not missing, case
