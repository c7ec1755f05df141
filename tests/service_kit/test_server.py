"""Ports, plain text, health, drain and signals, with real sockets and processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from google.longrunning import operations_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from enginehouse import errors
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, inference_pb2_grpc
from service_kit.operations import InMemoryOperations, OperationsServicer
from service_kit.server import Daemon, ServerSettings, serving

SERVICE = "enginehouse.inference.v1.InferenceService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
EMPTY = inference_pb2.GetServerInfoRequest()


async def register_nothing(daemon: Daemon) -> None:
    """A daemon without services."""


async def health(channel, name: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.com"])
def test_plain_text_beyond_loopback_is_refused_unless_it_is_meant(host):
    with pytest.raises(errors.InvalidArgument) as caught:
        ServerSettings(host=host, port=0)
    assert caught.value.reason == "INSECURE_BIND"
    assert "certificate" in caught.value.message
    assert ServerSettings(host=host, port=0, insecure=True).insecure


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_plain_text_on_loopback_is_fine(host):
    ServerSettings(host=host, port=0)


def test_half_of_tls_is_refused(tmp_path):
    for half in ({"tls_cert": tmp_path}, {"tls_key": tmp_path}, {"client_ca": tmp_path}):
        with pytest.raises(errors.InvalidArgument) as caught:
            ServerSettings(port=0, **half)
        assert caught.value.reason == "INCOMPLETE_TLS"


async def test_a_busy_port_is_named_with_what_to_do():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(errors.FailedPrecondition) as caught:
            async with serving(ServerSettings(port=port), register_nothing):
                pass
    assert caught.value.reason == "PORT_UNAVAILABLE"
    assert str(port) in caught.value.message
    assert "another port" in caught.value.message


async def test_two_daemons_cannot_share_a_port(start):
    async with start() as running:
        with pytest.raises(errors.FailedPrecondition):
            async with serving(ServerSettings(port=running.daemon.port), register_nothing):
                pass


async def test_a_port_is_free_again_at_once(start):
    async with start() as running:
        port = running.daemon.port
        await running.inference.GetServerInfo(EMPTY)
    async with serving(ServerSettings(port=port), register_nothing) as daemon:
        assert daemon.port == port


async def test_an_unknown_host_is_named():
    with pytest.raises(errors.InvalidArgument) as caught:
        async with serving(ServerSettings(host="no.such.host.invalid", port=0, insecure=True), register_nothing):
            pass
    assert caught.value.reason == "UNKNOWN_HOST"


async def test_health_begins_not_serving_and_follows():
    async def register(daemon: Daemon) -> None:
        await daemon.health.set_not_serving("model/a")

    async with (
        serving(ServerSettings(port=0), register) as daemon,
        grpc.aio.insecure_channel(f"127.0.0.1:{daemon.port}") as channel,
    ):
        assert [await health(channel, name) for name in ("", "model/a")] == [NOT_SERVING, NOT_SERVING]
        await daemon.health.set_serving("model/a")
        assert [await health(channel, name) for name in ("", "model/a")] == [NOT_SERVING, SERVING]
        await daemon.health.set_serving()
        assert await health(channel, "") == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health(channel, "unknown")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_each_service_has_its_health(start):
    async with start() as running:
        assert await health(running.channel, SERVICE) == SERVING


async def test_reflection_lists_the_services_and_can_be_off(start):
    async def listed(running) -> set[str]:
        stub = reflection_pb2_grpc.ServerReflectionStub(running.channel)
        stream = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        return {service.name for service in (await stream.read()).list_services_response.service}

    async with start() as running:
        assert SERVICE in await listed(running)
    async with start(reflection=False) as running:
        with pytest.raises(grpc.aio.AioRpcError):
            await listed(running)


async def test_operations_are_listed_and_have_a_health_too():
    async def register(daemon: Daemon) -> None:
        daemon.add(operations_pb2_grpc.add_OperationsServicer_to_server, OperationsServicer(InMemoryOperations()))
        await daemon.health.set_serving()

    name = "google.longrunning.Operations"
    async with (
        serving(ServerSettings(port=0), register) as daemon,
        grpc.aio.insecure_channel(f"127.0.0.1:{daemon.port}") as channel,
    ):
        assert await health(channel, name) == SERVING
        stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        assert name in {service.name for service in (await stream.read()).list_services_response.service}


async def test_a_message_above_the_limit_is_refused(start):
    async with start(max_message_bytes=1000) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.inference.GetLoad(inference_pb2.GetLoadRequest(model="x" * 2000))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_draining_lets_live_calls_end_and_refuses_new_ones(start):
    entered, release = asyncio.Event(), asyncio.Event()

    async def behaviour(context):
        entered.set()
        await release.wait()

    async with start(behaviour) as running:
        live = asyncio.ensure_future(running.inference.GetServerInfo(EMPTY))
        await entered.wait()
        drain = asyncio.create_task(running.daemon.drain())
        await running.daemon.draining.wait()
        assert await health(running.channel, "") == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.inference.GetLoad(inference_pb2.GetLoadRequest())
        refused = errors.from_rpc_error(caught.value)
        assert (type(refused), refused.reason, refused.retry_after) == (errors.Unavailable, "DRAINING", 1.0)
        assert not drain.done()
        release.set()
        assert (await live).version == "probe"
        await asyncio.wait_for(drain, 2)


async def test_an_open_health_watch_does_not_hold_the_end(start):
    async with start() as running:
        watch = health_pb2_grpc.HealthStub(running.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        begun = time.monotonic()
        await running.daemon.drain()
        assert (await watch.read()).status == NOT_SERVING
        await running.daemon.stop()
        assert time.monotonic() - begun < 2


async def test_callbacks_run_in_order_and_a_broken_one_stops_no_other():
    ran: list[str] = []

    def note(name: str, fail: bool = False):
        async def callback() -> None:
            ran.append(name)
            if fail:
                raise RuntimeError(name)

        return callback

    async def register(daemon: Daemon) -> None:
        daemon.on_drain(note("drain"))
        daemon.on_stop(note("stop last"))
        daemon.on_stop(note("stop first", fail=True))

    async with serving(ServerSettings(port=0), register):
        pass
    assert ran == ["drain", "stop first", "stop last"]


PROGRAM = """
import asyncio, sys, uvloop
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, inference_pb2_grpc
from service_kit import logs
from service_kit.server import ServerSettings, run

class Slow(inference_pb2_grpc.InferenceServiceServicer):
    async def GetServerInfo(self, request, context):
        await asyncio.sleep(float(sys.argv[2]))
        return inference_pb2.ServerInfo(version="slow")

async def register(daemon):
    daemon.add(inference_pb2_grpc.add_InferenceServiceServicer_to_server, Slow())
    await daemon.health.set_serving()

logs.setup(json=True)
uvloop.run(run(ServerSettings(port=int(sys.argv[1]), grace_seconds=20), register))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_program(port: int, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(port), str(seconds)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def call_then_signal(process: subprocess.Popen[str], port: int, signals: int):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(timeout=20)
        call = inference_pb2_grpc.InferenceServiceStub(channel).GetServerInfo.future(EMPTY, wait_for_ready=True)
        time.sleep(0.3)
        for _ in range(signals):
            os.kill(process.pid, signal.SIGTERM)
            time.sleep(0.3)
        try:
            return call.result(timeout=20)
        except grpc.RpcError as exc:
            return exc.code()


def test_one_signal_lets_the_live_call_end():
    port = free_port()
    with start_program(port, 1.0) as process:
        answer = call_then_signal(process, port, signals=1)
        _, logged = process.communicate(timeout=20)
    assert answer.version == "slow"
    assert process.returncode == 0
    assert '"event": "draining"' in logged
    assert '"event": "stopped"' in logged


def test_a_second_signal_ends_the_grace():
    port = free_port()
    begun = time.monotonic()
    with start_program(port, 15.0) as process:
        answer = call_then_signal(process, port, signals=2)
        process.communicate(timeout=20)
    assert answer is grpc.StatusCode.UNAVAILABLE
    assert process.returncode == 0
    assert time.monotonic() - begun < 10


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, which is also its own authority."""
    openssl = shutil.which("openssl")
    if not openssl:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = (
        f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


async def test_tls_and_client_certificates(certificate):
    cert, key = certificate
    settings = ServerSettings(port=0, tls_cert=cert, tls_key=key, client_ca=cert)

    async def register(daemon: Daemon) -> None:
        await daemon.health.set_serving()

    async with serving(settings, register) as daemon:
        target = f"127.0.0.1:{daemon.port}"
        known = grpc.ssl_channel_credentials(cert.read_bytes(), key.read_bytes(), cert.read_bytes())
        async with grpc.aio.secure_channel(target, known) as channel:
            assert await health(channel, "") == SERVING
        unknown = grpc.ssl_channel_credentials(cert.read_bytes())
        async with grpc.aio.secure_channel(target, unknown) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await health(channel, "")


async def test_a_file_that_is_no_certificate_is_refused(tmp_path):
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    with pytest.raises(errors.FailedPrecondition) as caught:
        async with serving(ServerSettings(port=0, tls_cert=bad, tls_key=bad), register_nothing):
            pass
    assert caught.value.reason == "BIND_FAILED"
    absent = tmp_path / "absent.pem"
    with pytest.raises(errors.InvalidArgument) as missing:
        await serving(ServerSettings(port=0, tls_cert=absent, tls_key=absent), register_nothing).__aenter__()
    assert missing.value.reason == "UNREADABLE_TLS_FILE"
