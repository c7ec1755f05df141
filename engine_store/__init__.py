"""Engine versions on shared storage: publish, resolve, verify. Imports no torch."""

from engine_store.aliases import Alias
from engine_store.cleanup import Collected
from engine_store.leases import Lease
from engine_store.manifest import Manifest
from engine_store.names import VersionRef
from engine_store.publish import Published
from engine_store.quota import Usage
from engine_store.staging import Staging
from engine_store.store import EngineStore

__all__ = [
    "Alias",
    "Collected",
    "EngineStore",
    "Lease",
    "Manifest",
    "Published",
    "Staging",
    "Usage",
    "VersionRef",
]
