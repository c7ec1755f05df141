"""Clears the engine store, once a minute and when somebody asks: one at a time."""

from __future__ import annotations

import asyncio

from engine_store import EngineStore
from engine_store.cleanup import Collected
from service_kit import logs

log = logs.logger("builder.store")

PERIOD_SECONDS = 60.0


class Collector:
    """`EngineStore.collect` in threads, never twice at once: a call waits for the one before it."""

    def __init__(self, store: EngineStore) -> None:
        self._store, self._turn = store, asyncio.Lock()

    async def collect(self, validate_only: bool = False) -> Collected:
        """Removes what nobody needs; with `validate_only` only tells what. A caller that goes away meanwhile does not
        stop it, and the next one still waits for its end."""
        return await asyncio.shield(self._collect(validate_only))

    async def run(self) -> None:
        """Collects once a minute, until it is cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            try:
                await self.collect()
            except Exception:
                log.exception("clearing the store failed; it is tried again in a minute")

    async def _collect(self, validate_only: bool) -> Collected:
        async with self._turn:
            found = await asyncio.to_thread(self._store.collect, validate_only)
        if not validate_only and (found.removed or found.evicted or found.blobs):
            log.info(
                "store cleared",
                removed=[f"{engine}@{version}" for engine, version in found.removed],
                evicted=[f"{engine}@{version}" for engine, version in found.evicted],
                blobs=found.blobs,
                freed_bytes=found.freed_bytes,
                used_bytes=found.usage.used_bytes,
            )
        return found
