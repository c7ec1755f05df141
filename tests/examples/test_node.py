"""The Node.js example: from the .proto files alone, on the packages that its lock file pins."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginehouse import LLM, SamplingParams
from tests.client.scripted import ScriptedServer
from tests.examples.conftest import Daemons

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "node"

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="node and npm are not installed"
)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with its packages installed."""
    home = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json", "generate.js"):
        shutil.copy(EXAMPLE / name, home)
    install = ["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(install, cwd=home, capture_output=True, text=True, timeout=100, check=False)
    if "ENOTFOUND" in done.stderr or "ECONNREFUSED" in done.stderr:
        pytest.skip("no npm registry can be reached")
    assert done.returncode == 0, done.stderr
    return home


def run_example(example: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["node", "generate.js", *arguments, "--protos", str(ROOT / "protos")]
    return subprocess.run(command, cwd=example, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    running = ScriptedServer()
    yield running
    running.stop()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("chat", [False, True])
def test_it_streams_what_a_real_daemon_generates(example: Path, daemons: Daemons, llm: LLM, chat: bool) -> None:
    prompt = {"messages": [{"role": "user", "content": "the fox"}]} if chat else "the fox"
    whole = llm.generate(prompt, SamplingParams(max_tokens=20), use_tqdm=False).outputs[0]
    arguments = ["the fox", *(["--chat"] if chat else []), "--model", llm.model.name, "--max-tokens", "20", "--ids"]
    done = run_example(example, *arguments, "--target", daemons.inference)
    assert done.returncode == 0, done.stderr
    text, ids = done.stdout.removesuffix("\n").rsplit("\n", 1)
    assert text == whole.text
    assert ids == f"ids: {' '.join(map(str, whole.token_ids))}"


def test_it_streams_an_answer(example: Path, server: ScriptedServer) -> None:
    done = run_example(example, "echo", "--target", server.target, "--max-tokens", "3", "--ids")
    assert done.stdout == " t0 t1 t2\nids: 100 101 102\n", done.stderr
    assert done.returncode == 0
    assert "3 prompt tokens, 3 generated" in done.stderr


def test_it_chats(example: Path, server: ScriptedServer) -> None:
    done = run_example(example, "echo", "--chat", "--model", "tiny", "--target", server.target, "--max-tokens", "1")
    assert done.stdout == " t0\n", done.stderr
    assert server.inference.starts[0].chat.messages[0].role == "user"


def test_a_refused_prompt_and_a_missing_daemon_are_plain_errors(
    example: Path, server: ScriptedServer, unused_tcp_port: int
) -> None:
    refused = run_example(example, "refuse", "--target", server.target)
    assert (refused.returncode, refused.stderr) == (1, "Error: The prompt is refused.\n")
    missing = run_example(example, "echo", "--target", f"127.0.0.1:{unused_tcp_port}")
    assert missing.returncode == 1
    assert "start one with `enginehouse inference`" in missing.stderr
