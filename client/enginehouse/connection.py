"""How a client reaches a daemon: address, TLS, token, channel options; and where errors are translated."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc

from enginehouse.errors import EnginehouseError, Unavailable, Unimplemented, from_rpc_error

BUILDER_TARGET = "localhost:50051"
INFERENCE_TARGET = "localhost:50052"
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
KEEPALIVE_MS = 30_000

Daemon = Literal["builder", "inference"]

# Calls that change nothing, or carry a request_id: safe to repeat when the server was not reached.
_INFERENCE, _BUILDER = "enginehouse.inference.v1", "enginehouse.builder.v1"
_IDEMPOTENT = {
    f"{_INFERENCE}.InferenceService": (
        *("Tokenize", "Detokenize", "ApplyChatTemplate", "GetServerInfo", "GetLoad", "Abort"),
    ),
    f"{_INFERENCE}.ModelService": ("GetModel", "ListModels", "LoadModel", "ListAdapters"),
    f"{_INFERENCE}.TelemetryService": ("GetStats",),
    f"{_BUILDER}.BuilderService": (
        *("BuildEngine", "GetEngine", "ListEngines", "GetEngineVersion", "ListEngineVersions", "ListAliases"),
        "VerifyEngineVersion",
    ),
    "google.longrunning.Operations": ("GetOperation", "ListOperations", "CancelOperation"),
}
_RETRY = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
# What gRPC says of a connection that could not be made, and what that means here. The first that fits counts.
_NO_CONNECTION = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "UNTRUSTED",
        "The certificate of {target} is not trusted: give the CA that signed it.",
    ),
    ("handshake failed", "TLS_FAILED", "What answers at {target} does not speak TLS as asked: check TLS and the port."),
    ("parsing HTTP/2", "NOT_GRPC", "What answers at {target} is no gRPC server: check the port."),
    ("resolving", "UNKNOWN_HOST", "There is no host of {target}: check the name."),
    (
        "Socket closed",
        "REFUSED",
        "What answers at {target} closes the connection: check the port, and TLS if it has it.",
    ),
    ("", "UNREACHABLE", "No Enginehouse daemon answers at {target}: start one with `enginehouse {daemon}`."),
)


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """TLS to the daemon. Paths of PEM files: `ca_cert` (None: the system's roots), and for mutual TLS the client's
    `cert` and `key`. `server_name` replaces the target's name in the check of the server's certificate."""

    ca_cert: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together: give both or none")

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. Raises ValueError that names a file that cannot be read."""
        return grpc.ssl_channel_credentials(_read(self.ca_cert), _read(self.key), _read(self.cert))


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A daemon's address and how to speak with it. `token` is sent as a bearer token: give `tls` with it outside a
    trusted network."""

    target: str
    daemon: Daemon
    tls: TlsConfig | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        if not self.target or self.target.isspace() or "://" in self.target:
            raise ValueError(f"a target is HOST:PORT, for example {INFERENCE_TARGET}, not {self.target!r}")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Sent with each call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def channel(self) -> grpc.Channel:
        """A channel for blocking calls; it connects at the first one."""
        if self.tls is None:
            return grpc.insecure_channel(self.target, self._options())
        return grpc.secure_channel(self.target, self.tls.credentials(), self._options())

    def aio_channel(self) -> grpc.aio.Channel:
        """A channel for the running event loop."""
        if self.tls is None:
            return grpc.aio.insecure_channel(self.target, self._options())
        return grpc.aio.secure_channel(self.target, self.tls.credentials(), self._options())

    def _options(self) -> list[tuple[str, str | int]]:
        methods = [{"service": service, "method": name} for service, names in _IDEMPOTENT.items() for name in names]
        options: list[tuple[str, str | int]] = [
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 5_000),
            ("grpc.service_config", json.dumps({"methodConfig": [{"name": methods, "retryPolicy": _RETRY}]})),
        ]
        if self.tls is not None and self.tls.server_name:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return options

    def translate(self, error: grpc.RpcError) -> EnginehouseError:
        """The exception for a failed call. What our servers did not say themselves is explained here."""
        known = from_rpc_error(error)
        if known.reason != known.default_reason:
            return known
        what = {"target": self.target}
        if isinstance(known, Unavailable):
            if not known.message.startswith(("failed to connect", "errors resolving")):
                text = f"The connection to the {self.daemon} daemon at {self.target} was lost; try again."
                return Unavailable(text, reason="CONNECTION_LOST", metadata=what)
            _, reason, text = next(row for row in _NO_CONNECTION if row[0] in known.message)
            return Unavailable(text.format(target=self.target, daemon=self.daemon), reason=reason, metadata=what)
        if isinstance(known, Unimplemented):
            text = f"What answers at {self.target} is not an Enginehouse {self.daemon} daemon; check the address."
            return Unimplemented(text, reason="WRONG_SERVER", metadata=what)
        return known

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turns gRPC's exceptions into ours."""
        try:
            yield
        except grpc.RpcError as error:
            raise self.translate(error) from error


def _read(path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
