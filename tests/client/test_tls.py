"""TLS between client and daemon."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from enginehouse import LLM, SamplingParams, TlsConfig, Unavailable
from tests.client.scripted import ScriptedServer

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    home = tmp_path_factory.mktemp("tls")
    cert, key = home / "cert.pem", home / "key.pem"
    options = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command = ["openssl", "req", "-x509", *options, "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


@pytest.fixture
def target(certificate: tuple[Path, Path]) -> Iterator[str]:
    """A server that asks for a client certificate signed by the same authority."""
    cert, key = (path.read_bytes() for path in certificate)
    credentials = grpc.ssl_server_credentials([(key, cert)], root_certificates=cert, require_client_auth=True)
    server = ScriptedServer(credentials=credentials)
    yield server.target
    server.stop()


def test_mutual_tls(target: str, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with LLM("tiny", target=target, tls=TlsConfig(ca_cert=cert, cert=cert, key=key)) as llm:
        assert llm.generate("echo", SamplingParams(max_tokens=1), use_tqdm=False).outputs[0].text == " t0"


def test_an_untrusted_certificate_is_told_apart(target: str) -> None:
    with pytest.raises(Unavailable, match="is not trusted: give the CA"):
        LLM("tiny", target=target, tls=TlsConfig())


def test_plain_text_to_a_tls_server_hints_at_tls(target: str) -> None:
    with pytest.raises(Unavailable, match="and TLS if it has it"):
        LLM("tiny", target=target)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*none\.pem"):
        LLM("tiny", tls=TlsConfig(ca_cert=tmp_path / "none.pem"))
    with pytest.raises(ValueError, match="belong together"):
        TlsConfig(cert="a.pem")
