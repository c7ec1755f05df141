"""Counter-based random numbers: one uniform per (seed, position), with no state to keep or to lose.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A draw is a
pure function of its key and counter, so it does not depend on batch neighbours, slots, chunking or preemption.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ROUNDS = 10
_MULTIPLIER = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

Words = npt.NDArray[np.uint64]


def philox4x32(counter: Words, key: Words) -> Words:
    """Ten rounds. counter [R, 4] and key [R, 2] hold 32-bit words in uint64; returns [R, 4] alike."""
    c0, c1, c2, c3 = (counter[:, i] for i in range(4))
    for i in range(_ROUNDS):
        k0 = (key[:, 0] + np.uint64(i * _WEYL[0] & 0xFFFFFFFF)) & _MASK
        k1 = (key[:, 1] + np.uint64(i * _WEYL[1] & 0xFFFFFFFF)) & _MASK
        low, high = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        c0, c1, c2, c3 = (high >> _HALF) ^ c1 ^ k0, high & _MASK, (low >> _HALF) ^ c3 ^ k1, low & _MASK
    return np.stack([c0, c1, c2, c3], axis=1)


def uniforms(seeds: list[int], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits for each (seed, position). Seeds are taken modulo 2^64."""
    seed = np.array([value & 0xFFFFFFFFFFFFFFFF for value in seeds], dtype=np.uint64)
    key = np.stack([seed & _MASK, seed >> _HALF], axis=1)
    counter = np.zeros((len(seeds), 4), dtype=np.uint64)
    counter[:, 0] = positions.astype(np.uint64) & _MASK
    words = philox4x32(counter, key)
    high, low = words[:, 0] >> np.uint64(5), words[:, 1] >> np.uint64(6)
    return (high.astype(np.float64) * 2.0**26 + low.astype(np.float64)) / 2.0**53
