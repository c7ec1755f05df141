"""Where things lie in a store. Names are checked by whoever calls.

<store>/engines/<engine>/versions/<n>/        a whole, immutable version
                         claims/<n>/owner     who took the number n; stays with its version
                         keys/<key>/<i>       records: the version that carries a build key
                         aliases/<alias>/<i>  records: the version that an alias points at
                         tombstones/<n>       the version is deleted, and hidden at once. Stays for ever: the number is
                                              spent, also one that a dead writer had claimed for nothing
<store>/blobs/sha256/<aa>/<digest>            large files, hard-linked into versions
<store>/staging/<token>                       what is being written, named after its process
<store>/leases/<engine>.<n>.<token>           readers; the time of the last renewal is the file's mtime
               <engine>.<n>.used              its mtime is when a reader last held the version
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from engine_store.names import is_id

MANIFEST = "engine.json"
USED = "used"


class Layout:
    """The paths of one store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.engines = root / "engines"
        self.blobs = root / "blobs" / "sha256"
        self.staging = root / "staging"
        self.leases = root / "leases"

    def engine_names(self) -> list[str]:
        """The ids that have a directory, sorted; with or without a version."""
        try:
            return sorted(entry.name for entry in self.engines.iterdir() if is_id(entry.name))
        except FileNotFoundError:
            return []

    def versions(self, engine: str) -> Path:
        return self.engines / engine / "versions"

    def version(self, engine: str, version: int) -> Path:
        return self.versions(engine) / str(version)

    def claims(self, engine: str) -> Path:
        return self.engines / engine / "claims"

    def claim(self, engine: str, version: int) -> Path:
        return self.claims(engine) / str(version)

    def keys(self, engine: str) -> Path:
        return self.engines / engine / "keys"

    def key(self, engine: str, build_key: str) -> Path:
        """A build key is hashed again, so that any text is a safe name."""
        return self.keys(engine) / hashlib.sha256(build_key.encode()).hexdigest()

    def aliases(self, engine: str) -> Path:
        return self.engines / engine / "aliases"

    def tombstones(self, engine: str) -> Path:
        return self.engines / engine / "tombstones"

    def tombstone(self, engine: str, version: int) -> Path:
        return self.tombstones(engine) / str(version)

    def blob(self, hex_digest: str) -> Path:
        return self.blobs / hex_digest[:2] / hex_digest

    def lease(self, engine: str, version: int, token: str) -> Path:
        return self.leases / f"{engine}.{version}.{token}"

    def last_use(self, engine: str, version: int) -> Path:
        return self.leases / f"{engine}.{version}.{USED}"
