"""Where things lie in a store. Pure paths: names are checked by whoever calls.

<store>/engines/<engine>/versions/<n>/        a whole, immutable version
                         claims/<n>/owner     who took the number n; numbers are never reused
                         keys/<key>/<i>       records: the version that carries a build key
                         aliases/<alias>/<i>  records: the version that an alias points at
                         tombstones/<n>       the version is deleted, and hidden at once; stays, as the number is spent
<store>/blobs/sha256/<aa>/<digest>            large files, hard-linked into versions
<store>/staging/<token>                       what is being written, named after its process
<store>/leases/<engine>.<n>.<token>           readers; the time of the last renewal is the file's mtime
               <engine>.<n>.used              its mtime is when a reader last held the version
"""

from __future__ import annotations

import hashlib
from pathlib import Path

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

    def versions(self, engine: str) -> Path:
        return self.engines / engine / "versions"

    def version(self, engine: str, version: int) -> Path:
        return self.versions(engine) / str(version)

    def claims(self, engine: str) -> Path:
        return self.engines / engine / "claims"

    def key(self, engine: str, build_key: str) -> Path:
        """A build key is hashed again, so that any text is a safe name."""
        return self.engines / engine / "keys" / hashlib.sha256(build_key.encode()).hexdigest()

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
