"""An engine version in memory: graph, weights, KV pools, and the types it computes in."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from engine_ops.graph import Graph, Pool, decode
from engine_ops.opset import Attrs, Rope
from engine_ops.rope import rope_tables
from engine_store.manifest import Manifest
from enginehouse.errors import FailedPrecondition, InvalidArgument
from inference_service.config import KvCacheConfig
from inference_service.runners.base import Step
from inference_service.runners.huge_pages import huge_zeros
from inference_service.runners.plan import Instruction
from inference_service.runners.weights import StoredWeights, damaged

A = TypeVar("A", bound=Attrs)


class Version(NamedTuple):
    """An engine version on disk; any object with these two attributes will do."""

    manifest: Manifest
    dir: Path


def read_graph(directory: Path) -> Graph:
    """The version's graph. Raises DataLoss, or FailedPrecondition where this server does not run its opset."""
    try:
        return decode((directory / "graph.json").read_bytes())
    except (OSError, InvalidArgument) as error:
        raise damaged("graph.json") from error


class Engine:
    """Weights and pools on one device. Pools [N, num_kv_heads, block_size, head_dim] start at zero.

    Args:
        version: manifest and directory.
        device: where everything lives.

    Attributes:
        dtype: of weights and pools in memory; set it before either is made. Default float32.
    """

    def __init__(self, version: Version, device: torch.device) -> None:
        self.manifest = version.manifest
        self.dtype = torch.float32
        self.device = device
        self.graph = read_graph(version.dir)
        self.stored = StoredWeights(version.dir, self.graph)
        self.max_positions = version.manifest.limits.max_seq_len
        self._weights: dict[str, torch.Tensor] = {}
        self._ropes: dict[Rope, tuple[torch.Tensor, torch.Tensor]] = {}
        self.pools: dict[str, torch.Tensor] = {}
        self.block_sizes = self._block_sizes()

    def _block_sizes(self) -> tuple[int, ...]:
        sizes = {pool.group: int(pool.tensor.shape[2]) for pool in self.graph.pools.values()}
        return tuple(sizes[group] for group in sorted(sizes))

    @property
    def num_blocks(self) -> tuple[int, ...]:
        """Blocks of each cache group, block 0 included; after `allocate_pools`."""
        counts = {pool.group: len(self.pools[name]) for name, pool in self.graph.pools.items()}
        return tuple(counts[group] for group in sorted(counts))

    @property
    def num_parameters(self) -> int:
        return sum(prod(int(dim) for dim in tensor.shape) for tensor in self.graph.weights.values())

    def close(self) -> None:
        """Lets go of weights and pools."""
        self.stored.close()
        self._weights.clear()
        self.pools.clear()

    def allocate_pools(self, num_blocks: int) -> None:
        for name, pool in self.graph.pools.items():
            shape = [num_blocks, *(int(dim) for dim in pool.tensor.shape[1:])]
            if self.device.type == "cpu":
                self.pools[name] = huge_zeros(prod(shape) * self.dtype.itemsize).view(self.dtype).view(shape)
            else:
                self.pools[name] = torch.zeros(shape, dtype=self.dtype, device=self.device)

    def copy_blocks(self, step: Step) -> None:
        """A step's block copies, in order, in every pool of their group."""
        for copy in step.copies:
            for name, pool in self.graph.pools.items():
                if pool.group == copy.group:
                    self.pools[name][copy.destination].copy_(self.pools[name][copy.source])

    def attrs(self, instruction: Instruction, kind: type[A]) -> A:
        assert isinstance(instruction.attrs, kind), f"{instruction.node.name} has no {kind.__name__}"
        return instruction.attrs

    def weight(self, instruction: Instruction, parameter: str) -> torch.Tensor:
        """A weight in the compute dtype on the device; shared by all its users."""
        name = instruction.inputs[parameter].name
        if name not in self._weights:
            self._weights[name] = self.stored.read(name).to(self.device, self.dtype)
        return self._weights[name]

    def optional_weight(self, instruction: Instruction, parameter: str) -> torch.Tensor | None:
        return self.weight(instruction, parameter) if parameter in instruction.inputs else None

    def stored_weight(self, instruction: Instruction, parameter: str) -> torch.Tensor:
        """A weight of which few rows are read each step: left as it is stored (on a CPU, in the mapped file)."""
        name = instruction.inputs[parameter].name
        return self._weights[name] if name in self._weights else self.stored.map(name).to(self.device)

    def rope(self, rope: Rope) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [max_positions, dim / 2] float32 on the device; shared by all layers."""
        if rope not in self._ropes:
            cos, sin = (torch.from_numpy(table).to(self.device) for table in rope_tables(rope, self.max_positions))
            self._ropes[rope] = (cos, sin)
        return self._ropes[rope]

    def pool(self, instruction: Instruction, parameter: str) -> torch.Tensor:
        return self.pools[instruction.inputs[parameter].name]

    def group(self, instruction: Instruction) -> int:
        return self.graph.pools[instruction.inputs["k_pool"].name].group


def count_blocks(graph: Graph, manifest: Manifest, dtype: torch.dtype, config: KvCacheConfig, free: int) -> int:
    """Blocks of each cache group, block 0 included, that `free` bytes and the configuration allow.

    Never more than the engine's limits could fill. Raises FailedPrecondition (reason KV_CACHE_TOO_SMALL) where not
    one block fits.
    """
    pools = graph.pools.values()
    size = max((int(pool.tensor.shape[2]) for pool in pools), default=1)
    block_bytes = sum(_elements(pool) for pool in pools) * dtype.itemsize
    limits = manifest.limits
    most = limits.max_batch_size * -(-limits.max_seq_len // size)
    if config.max_tokens is not None:
        most = min(most, config.max_tokens // size)
    fitting = min(most, int(free * config.free_gpu_memory_fraction) // max(block_bytes, 1) - 1)
    if fitting < 1:
        raise FailedPrecondition(
            f"The KV cache has room for {max(fitting, 0)} blocks of {size} tokens; "
            "raise kv_cache.max_tokens or free memory.",
            reason="KV_CACHE_TOO_SMALL",
            metadata={"block_bytes": block_bytes, "free_bytes": free},
        )
    return fitting + 1


def _elements(pool: Pool) -> int:
    _, heads, size, dim = pool.tensor.shape
    return int(heads) * int(size) * int(dim)
