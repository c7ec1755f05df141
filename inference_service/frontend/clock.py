"""Wall-clock times for the wire, from the monotonic times that the executor uses."""

from __future__ import annotations

import time

from google.protobuf.timestamp_pb2 import Timestamp


def to_timestamp(monotonic: float) -> Timestamp:
    """The wall-clock time of a moment of time.monotonic()."""
    return wall_timestamp(time.time() - time.monotonic() + monotonic)


def wall_timestamp(seconds: float) -> Timestamp:
    """Seconds since the epoch as a Timestamp."""
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp
