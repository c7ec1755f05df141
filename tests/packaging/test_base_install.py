"""The base install is the client alone: it works in a fresh environment that has no torch."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROBE = """
import importlib.util, sys
import enginehouse
from enginehouse import LLM, BuilderClient, SamplingParams
for name in ("torch", "transformers", "msgspec", "grpc_health"):
    assert importlib.util.find_spec(name) is None, f"{name} is installed"
print(SamplingParams(max_tokens=3).max_tokens)
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of executables of a new virtual environment with nothing but the base install."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, with_pip=True)
    install = [
        home / "bin/python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        ROOT / "constraints.txt",
        str(ROOT),
    ]
    done = subprocess.run(install, capture_output=True, text=True, timeout=300)
    if "No matching distribution" in done.stderr or "Connection" in done.stderr:
        pytest.skip("no package registry can be reached")
    assert done.returncode == 0, done.stderr
    return home / "bin"


def run(fresh: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=60, env=environment, cwd=fresh.parent, check=False
    )


@pytest.mark.timeout(360)
def test_the_client_imports_without_torch(fresh: Path) -> None:
    done = run(fresh, str(fresh / "python"), "-W", "error", "-c", PROBE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "3"


@pytest.mark.timeout(360)
def test_a_daemon_without_its_extra_says_what_to_install(fresh: Path) -> None:
    for daemon in ("builder", "inference"):
        done = run(fresh, str(fresh / "enginehouse"), daemon)
        assert done.returncode != 0
        assert f"enginehouse[{daemon}]" in done.stderr + done.stdout
        assert "Traceback" not in done.stderr


def test_this_interpreter_is_supported() -> None:
    assert sys.version_info >= (3, 11)
