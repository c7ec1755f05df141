"""How busy the models are, and what the machine has."""

from __future__ import annotations

import os
import platform
import time

import torch

from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from inference_service.frontend.served_model import ServedModel, StepStats

THROUGHPUT_SECONDS = 10.0


def load_of(model: ServedModel) -> pb.ModelLoad:
    """The model's load as of its executor's last step."""
    load = pb.ModelLoad(model=model.name, max_queue_size=model.load.config.max_queue_size)
    stats = model.stats()
    if stats is None:
        return load
    looked_for = stats.reused_blocks_total + stats.missed_blocks_total
    load.running_requests = stats.num_running
    load.queued_requests = stats.num_waiting
    load.queued_tokens = model.queued_tokens()
    load.running_tokens = stats.used_blocks * stats.tokens_per_block
    load.used_kv_blocks = stats.used_blocks
    load.total_kv_blocks = stats.max_blocks
    load.generation_throughput = throughput(list(model.steps), time.time())
    load.cache_hit_rate = stats.reused_blocks_total / looked_for if looked_for else 0.0
    return load


def throughput(steps: list[StepStats], now: float) -> float:
    """Tokens a second over the last ten seconds."""
    recent = [step.tokens for step in steps if step.time > now - THROUGHPUT_SECONDS]
    return sum(recent) / THROUGHPUT_SECONDS


def devices() -> list[pb.Device]:
    """The CPU first, then the CUDA devices."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = [pb.Device(id="cpu", name=platform.processor() or platform.machine(), memory_bytes=memory)]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            pb.Device(
                id=f"cuda:{index}",
                name=properties.name,
                compute_capability=f"{properties.major}.{properties.minor}",
                memory_bytes=properties.total_memory,
            )
        )
    return found
