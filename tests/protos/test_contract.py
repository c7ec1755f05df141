"""The contract is clean, and its generated code is what the contract says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = ROOT / "protos" / "enginehouse"


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def buf(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    beside = Path(sys.executable).with_name("buf")
    found = str(beside) if beside.exists() else shutil.which("buf")
    if not found:
        pytest.skip("buf is not installed (extra dev)")
    return run(found, *arguments, cwd=cwd)


def test_generated_code_is_fresh():
    pytest.importorskip("grpc_tools")
    done = run(sys.executable, "scripts/gen_protos.py", "--check")
    assert done.returncode == 0, done.stderr


def test_a_stale_file_is_named(tmp_path):
    pytest.importorskip("grpc_tools")
    for part in ("protos", "scripts", "client/enginehouse/_gen"):
        shutil.copytree(ROOT / part, tmp_path / part)
    changed = tmp_path / "protos/enginehouse/common/v1/common.proto"
    changed.write_text(changed.read_text().replace("DATA_TYPE_BOOL = 12", "DATA_TYPE_BOOL = 13"))
    done = run(sys.executable, "scripts/gen_protos.py", "--check", cwd=tmp_path)
    assert done.returncode == 1
    assert "client/enginehouse/_gen/enginehouse/common/v1/common_pb2.py" in done.stderr


def test_lint_is_clean_and_every_element_is_commented():
    done = buf("lint")
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint_notices_an_element_without_a_comment(tmp_path):
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    changed = tmp_path / "protos/enginehouse/common/v1/common.proto"
    changed.write_text(changed.read_text().replace("  // Boolean, one byte each.\n", ""))
    done = buf("lint", cwd=tmp_path)
    assert done.returncode != 0
    assert "DATA_TYPE_BOOL" in done.stdout


def test_format_is_canonical():
    done = buf("format", "--diff", "--exit-code", "--path", "protos/enginehouse")
    assert done.returncode == 0, done.stdout


def test_no_line_is_longer_than_120():
    lines = (
        (path.name, n, line)
        for path in CONTRACT.rglob("*.proto")
        for n, line in enumerate(path.read_text().splitlines(), 1)
    )
    long = [f"{name}:{n}" for name, n, line in lines if len(line) > 120]
    assert long == []


def test_generated_code_and_googleapis_import_together_without_a_warning():
    program = """
from google.longrunning import operations_proto_pb2, operations_pb2, operations_pb2_grpc
from enginehouse._gen.enginehouse.builder.v1 import builder_pb2, builder_pb2_grpc
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2_grpc, model_pb2_grpc, telemetry_pb2_grpc
from google.protobuf import descriptor_pool
find = descriptor_pool.Default().FindMessageTypeByName
assert find("google.longrunning.Operation") is operations_proto_pb2.Operation.DESCRIPTOR
method = builder_pb2.DESCRIPTOR.services_by_name["BuilderService"].methods_by_name["BuildEngine"]
assert method.output_type is operations_pb2.Operation.DESCRIPTOR
info = method.GetOptions().Extensions[operations_proto_pb2.operation_info]
assert (info.response_type, info.metadata_type) == ("EngineVersion", "BuildMetadata")
"""
    done = run(sys.executable, "-W", "error", "-c", program)
    assert done.returncode == 0, done.stderr


def test_vendored_contracts_are_those_of_the_installed_package():
    import google.longrunning

    if (version := metadata.version("googleapis-common-protos")) != "1.76.0":
        pytest.skip(f"googleapis-common-protos {version} is installed; protos/third_party is that of 1.76.0")
    site = Path(google.longrunning.__path__[0]).parents[0]
    vendored = ROOT / "protos" / "third_party" / "google"
    for path in vendored.rglob("*.proto"):
        name = str(path.relative_to(vendored)).replace("operations.proto", "operations_proto.proto")
        assert path.read_text() == (site / name).read_text(), name
