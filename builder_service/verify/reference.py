"""transformers as the reference, with the weights of one layer in memory at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from builder_service.sources.base import Checkpoint, Progress
from builder_service.verify.precision import Float32Accumulate
from enginehouse.errors import InvalidArgument

IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
"""Config keys that may name a repository whose code computes a part of the model: they are not read."""


def reference_logits(
    checkpoint: Checkpoint,
    sequences: Sequence[Sequence[int]],
    dtype: str,
    progress: Progress = lambda done, total: None,
) -> list[Tensor]:
    """Logits of every position of every sequence, by transformers' own forward pass.

    The model stands on the meta device. Each module that holds parameters gets them from the checkpoint just before
    it runs and loses them after, so that memory holds the largest module, not the model.

    Args:
        sequences: token ids; each at least one.
        dtype: of weights and activations: "float32", "bfloat16" or "float16".
        progress: called with (modules done, modules in all).

    Returns:
        For each sequence, float32 [len(sequence), vocab].
    """
    model = _skeleton(checkpoint.config, getattr(torch, dtype))
    width = max(map(len, sequences))
    # Padding stands on the right, where no real token looks: attention is causal.
    padded = torch.tensor([[*sequence, *[0] * (width - len(sequence))] for sequence in sequences])
    with _streamed(model, checkpoint, progress), torch.no_grad(), Float32Accumulate():
        logits: Tensor = model(input_ids=padded, use_cache=False).logits
    return [row[: len(sequence)].float() for row, sequence in zip(logits, sequences, strict=True)]


def _skeleton(config: dict[str, Any], dtype: torch.dtype) -> Any:
    """The model without its parameters; constants that follow from the config (rope) are real."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    plain = {key: value for key, value in config.items() if key.removeprefix("_") not in IMPLEMENTATIONS}
    try:
        parsed = CONFIG_MAPPING[config["model_type"]].from_dict(plain)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                parsed, dtype=dtype, trust_remote_code=False, attn_implementation="sdpa"
            )
    except Exception as error:  # which values are refused, and how, is the library's affair
        why = str(error).partition("\n")[0].rstrip(":.")[:300]  # further lines show the library's inside
        message = f"transformers cannot make the checkpoint's model: {why}. Correct config.json."
        raise InvalidArgument(message, reason="INVALID_MODEL_CONFIG", metadata={"file": "config.json"}) from error
    for path, module in list(model.named_modules()):
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            model.set_submodule(path, type(module)(config=parsed))
    return model.eval()


@contextmanager
def _streamed(model: nn.Module, checkpoint: Checkpoint, progress: Progress) -> Iterator[None]:
    """Hooks that fill a module from the checkpoint before it runs and empty it after."""
    units = list(_units(model))
    done = 0

    def fill(module: nn.Module, path: str) -> None:
        state = {
            name: _tensor(checkpoint, f"{path}.{name}").to(parameter.dtype)
            for name, parameter in module.named_parameters()
        }
        module.load_state_dict(state, strict=False, assign=True)

    def empty(module: nn.Module) -> None:
        nonlocal done
        for child in module.modules():
            for name, parameter in child._parameters.items():
                if parameter is not None:
                    child._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)
        gc.collect(0)
        done += 1
        progress(done, len(units))

    handles = []
    for path, module in units:
        handles.append(module.register_forward_pre_hook(lambda module, _, path=path: fill(module, path)))
        handles.append(module.register_forward_hook(lambda module, *_: empty(module)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _units(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What is filled at once: each layer of a list of layers, and each module outside of them with parameters."""
    layers = [path for path, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    for path, module in model.named_modules():
        parent, _, index = path.rpartition(".")
        inside = any(path.startswith(f"{layer}.") for layer in layers)
        if (parent in layers and index.isdigit()) or (not inside and any(True for _ in module.parameters(False))):
            yield path, module


def _tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    """A parameter; a head that is tied reads the embedding."""
    tied = name == "lm_head.weight" and name not in checkpoint.names()
    name = "model.embed_tokens.weight" if tied else name
    if name not in checkpoint.names():
        message = f"The model_type of config.json has a tensor {name}, which its architecture has not. Correct it."
        raise InvalidArgument(message, reason="INVALID_MODEL_CONFIG", metadata={"field": "model_type", "tensor": name})
    return checkpoint.tensor(name)
