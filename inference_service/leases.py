"""The leases of one daemon: a version's files stay, deleted or not, while it is read and served."""

from __future__ import annotations

from threading import Event, Lock, Thread

from engine_store import EngineStore
from engine_store.leases import LEASE_SECONDS, Lease
from service_kit import logs

log = logs.logger("leases")

RENEW_SECONDS = LEASE_SECONDS / 3
RETRY_SECONDS = LEASE_SECONDS / 12
"""After a renewal that failed."""


class LeaseKeeper:
    """Takes leases, and renews them from a thread of its own: a busy event loop or a full pool never delays it.

    A renewal that fails (a store that went read-only or full) is logged and tried again; what is served goes on. All
    methods may be called from any thread.
    """

    def __init__(self, store: EngineStore, renew_seconds: float = RENEW_SECONDS) -> None:
        self._store = store
        self._renew_seconds = renew_seconds
        self._held: set[Lease] = set()
        self._lock = Lock()
        self._closed = Event()
        self._thread: Thread | None = None

    def hold(self, engine: str, version: int) -> Lease:
        """A lease that is renewed until `release`.

        Raises:
            NotFound: there is no such version. Internal, ResourceExhausted: the store takes no lease from this server.
        """
        lease = self._store.lease(engine, version)
        with self._lock:
            self._held.add(lease)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="renew leases", daemon=True)
                self._thread.start()
        return lease

    def release(self, lease: Lease) -> None:
        """Ends the lease. Where that cannot be written, it ends by itself. Idempotent."""
        with self._lock:  # not beside a renewal, which would make it anew
            self._held.discard(lease)
            try:
                lease.release()
            except OSError as error:
                log.warning("a lease could not be released; it expires by itself", error=str(error))

    def close(self) -> None:
        """Ends the renewing. Leases that are still held expire by themselves."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        pause = self._renew_seconds
        while not self._closed.wait(pause):
            pause = self._renew_seconds if self._renew() else min(RETRY_SECONDS, self._renew_seconds)

    def _renew(self) -> bool:
        """Whether all went well."""
        well = True
        for lease in tuple(self._held):
            with self._lock:
                if lease not in self._held:
                    continue
                try:
                    lease.renew()
                except OSError as error:
                    log.warning("a lease could not be renewed; trying again", error=str(error))
                    well = False
        return well
