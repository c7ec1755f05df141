"""Zeroed memory on huge pages: what a step walks through is far larger than the processor's table of small ones."""

from __future__ import annotations

import mmap

import torch


def huge_zeros(num_bytes: int) -> torch.Tensor:
    """Zeros, uint8 [num_bytes], page-aligned. Takes memory only where it is written. Freed with the last view of it."""
    memory = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)[:num_bytes]
