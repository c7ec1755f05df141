"""A daemon's gRPC server: TLS, port, health, reflection, and an orderly end.

    async def register(daemon: Daemon) -> None:
        daemon.add(inference_pb2_grpc.add_InferenceServiceServicer_to_server, servicer)
        daemon.on_drain(frontend.finish_live_requests)
        daemon.on_stop(executor.close)
        await daemon.health.set_serving()

    uvloop.run(run(ServerSettings(port=50051), register))

The end, on SIGTERM or SIGINT: health says NOT_SERVING; new calls are refused with UNAVAILABLE; `on_drain` callbacks
run; live calls may finish; all this within `grace_seconds`. Then the server stops and `on_stop` callbacks run. A
second signal ends the grace at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health as grpc_health
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from enginehouse.errors import FailedPrecondition, InvalidArgument
from service_kit import logs
from service_kit.status import ErrorInterceptor

log = logs.logger("server")

# An open Health.Watch never ends by itself, so the last stop waits for this long only.
_STOP_SECONDS = 0.2

Callback = Callable[[], Awaitable[None]]
Register = Callable[["Daemon"], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where and how a daemon listens.

    `port` 0 takes any free one. With `tls_cert` and `tls_key` (PEM) the server speaks TLS, and with `client_ca` too it
    asks clients for a certificate. Without TLS it listens on loopback only, unless `insecure`.
    """

    host: str = "127.0.0.1"
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    insecure: bool = False
    max_message_bytes: int = 32 << 20
    reflection: bool = True
    grace_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidArgument(f"Port {self.port} does not exist; give 0 to 65535.", metadata={"port": self.port})
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgument("TLS needs both a certificate and its key; give both.", reason="INCOMPLETE_TLS")
        if self.client_ca and not self.tls_cert:
            raise InvalidArgument("A client CA needs TLS; give a certificate and its key too.", reason="INCOMPLETE_TLS")
        if not (self.tls_cert or self.insecure or _is_loopback(self.host)):
            raise InvalidArgument(
                f"{self.host} is reachable from other machines, and this server would speak plain text there. "
                "Give a TLS certificate and key, listen on 127.0.0.1, or say that plain text is meant (insecure).",
                reason="INSECURE_BIND",
                metadata={"host": self.host},
            )

    @property
    def address(self) -> str:
        """host:port, as gRPC takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Health:
    """The health service. Everything is NOT_SERVING until it is said to serve, and for good once draining."""

    def __init__(self) -> None:
        self.servicer = grpc_health.aio.HealthServicer()
        self._said: dict[str, bool] = {"": False}

    def expect(self, name: str) -> None:
        """Answers for this name too once the server starts. "" is the whole server, a service's name that service."""
        self._said.setdefault(name, False)

    async def set_serving(self, name: str | None = None) -> None:
        """Says SERVING for one name, new or known, or for all known ones."""
        await self._say(name, True)

    async def set_not_serving(self, name: str | None = None) -> None:
        """Says NOT_SERVING for one name, new or known, or for all known ones."""
        await self._say(name, False)

    async def start(self) -> None:
        """Tells the servicer, which begins with SERVING, what was said so far."""
        for name, serving in list(self._said.items()):
            await self._say(name, serving)

    async def drain(self) -> None:
        """Says NOT_SERVING for all names; nothing changes that any more."""
        await self.servicer.enter_graceful_shutdown()

    async def _say(self, name: str | None, serving: bool) -> None:
        answer = health_pb2.HealthCheckResponse
        for each in list(self._said) if name is None else [name]:
            self._said[each] = serving
            await self.servicer.set(each, answer.SERVING if serving else answer.NOT_SERVING)


class Daemon:
    """A server to add services to. Made by `serving` and `run`, which start and end it."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.health = Health()
        self.calls = ErrorInterceptor()
        self.draining = asyncio.Event()
        """Set when the end begins. Endless streams watch it and end."""
        self.port = 0
        """The port that it listens on, once started."""
        self.grpc = grpc.aio.server(interceptors=[self.calls], options=_options(settings))
        self._names: list[str] = []
        self._on_start: list[Callback] = []
        self._on_drain: list[Callback] = []
        self._on_stop: list[Callback] = []

    def add(self, add_to_server: Callable[[Any, Any], None], servicer: object) -> None:
        """Adds a service by the function that its generated code has for it."""
        recorder = _NameRecorder(self.grpc)
        add_to_server(servicer, recorder)
        self._names.extend(recorder.names)
        for name in recorder.names:
            self.health.expect(name)

    def on_start(self, callback: Callback) -> None:
        """Runs once the server listens: work that must not begin where the port is taken."""
        self._on_start.append(callback)

    def on_drain(self, callback: Callback) -> None:
        """Runs at the end's beginning, in the order of registration; may wait for live work, within the grace."""
        self._on_drain.append(callback)

    def on_stop(self, callback: Callback) -> None:
        """Runs after the server has stopped, the last registered first."""
        self._on_stop.append(callback)

    async def start(self, register: Register) -> None:
        """Listens. The services are registered first, so that none is ever missing."""
        await register(self)
        await self.health.start()
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, self.grpc)
        if self.settings.reflection:
            names = [*self._names, grpc_health.SERVICE_NAME, reflection.SERVICE_NAME]
            reflection.enable_server_reflection(names, self.grpc)
        self.port = _bind(self.grpc, self.settings)
        await self.grpc.start()
        log.info("listening", host=self.settings.host, port=self.port, tls=self.settings.tls_cert is not None)
        for callback in self._on_start:
            await callback()

    async def drain(self) -> None:
        """Refuses new calls, runs the callbacks and waits for live calls; at most `grace_seconds`."""
        log.info("draining", live_calls=self.calls.live_calls, grace_seconds=self.settings.grace_seconds)
        await self.health.drain()
        self.calls.drain()
        self.draining.set()
        try:
            async with asyncio.timeout(self.settings.grace_seconds):
                for callback in self._on_drain:
                    await callback()
                await self.calls.idle()
        except TimeoutError:
            log.warning("grace is over", live_calls=self.calls.live_calls)

    async def stop(self) -> None:
        """Ends what is still live and releases everything."""
        await self.grpc.stop(_STOP_SECONDS)
        for callback in reversed(self._on_stop):
            try:
                await callback()
            except Exception:
                log.exception("a stop callback failed")
        log.info("stopped")


class _NameRecorder:
    """Stands for the server while generated code adds a service, to learn the service's name."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self.names: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        # the only call of older generated code, as google.longrunning's is
        for handler in handlers:
            if isinstance(handler, grpc.ServiceRpcHandler) and (name := handler.service_name()) not in self.names:
                self.names.append(name)
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, name: str, handlers: dict[str, Any]) -> None:
        if name not in self.names:
            self.names.append(name)
        self._server.add_registered_method_handlers(name, handlers)


@contextlib.asynccontextmanager
async def serving(settings: ServerSettings, register: Register) -> AsyncIterator[Daemon]:
    """A started daemon, for tests and for daemons inside another program. Drains and stops at the end."""
    daemon = Daemon(settings)
    try:
        await daemon.start(register)
        yield daemon
        await daemon.drain()
    finally:
        await daemon.stop()


async def run(settings: ServerSettings, register: Register) -> None:
    """Serves until SIGTERM or SIGINT; then drains and stops. A second signal ends the grace.

    Raises:
        EnginehouseError: it could not start; the message says what to do.
    """
    ends: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ends.put_nowait, number)
    daemon = Daemon(settings)
    try:
        await daemon.start(register)
        await ends.get()
        drain, again = asyncio.create_task(daemon.drain()), asyncio.create_task(ends.get())
        await asyncio.wait({drain, again}, return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, again):
            task.cancel()
        await asyncio.gather(drain, again, return_exceptions=True)
    finally:
        await daemon.stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        # SO_REUSEPORT would let a second daemon take half of the connections unseen
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _bind(server: grpc.aio.Server, settings: ServerSettings) -> int:
    _prove_free(settings)
    try:
        if credentials := _credentials(settings):
            return int(server.add_secure_port(settings.address, credentials))
        return int(server.add_insecure_port(settings.address))
    except RuntimeError as exc:  # another process took it after the proof, or the certificate is no certificate
        raise FailedPrecondition(
            f"Could not listen on {settings.address}. Check that the port is free and the certificate fits its key.",
            reason="BIND_FAILED",
            metadata={"host": settings.host, "port": settings.port},
        ) from exc


def _prove_free(settings: ServerSettings) -> None:
    """Binds the port for a moment with a plain socket, as gRPC's own failure does not say why."""
    where = {"host": settings.host, "port": settings.port}
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as exc:
        raise InvalidArgument(
            f"{settings.host} is no address of this machine; give one, or 0.0.0.0 for all.",
            reason="UNKNOWN_HOST",
            metadata=where,
        ) from exc
    except OSError as exc:
        raise FailedPrecondition(
            f"Port {settings.port} on {settings.host} cannot be used ({exc.strerror}). Stop the process that listens "
            "there (`ss -ltnp` shows it), or choose another port.",
            reason="PORT_UNAVAILABLE",
            metadata=where,
        ) from exc


def _credentials(settings: ServerSettings) -> grpc.ServerCredentials | None:
    if not (settings.tls_cert and settings.tls_key):
        return None
    ca = _read(settings.client_ca) if settings.client_ca else None
    pair = (_read(settings.tls_key), _read(settings.tls_cert))
    return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise InvalidArgument(
            f"Could not read {path} ({exc.strerror}); check the path and its permissions.",
            reason="UNREADABLE_TLS_FILE",
            metadata={"path": path},
        ) from exc


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
