"""SmolLM2 as a graph on the CPU against transformers: the contract's first target.

    python benchmarks/spike_cpu.py --gguf FILE --out spike_cpu.json [--save-graph FILE]

Loads the GGUF with transformers (which needs `accelerate` for that), captures the graph, and compares the reference
interpreter's logits over a prefill, a chunk and single tokens with transformers' over the whole text, in float32.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from builder_service.build.capture import capture
from builder_service.models import read_spec, weight_parts
from engine_ops.contract import Chunk, make_pools, step_inputs
from engine_ops.graph import encode
from engine_ops.run import run_graph

TEXT = "The capital of France is Paris. " * 12 + "The history of the city begins"
BLOCK_SIZE = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--save-graph", type=Path)
    args = parser.parse_args()
    source = {"pretrained_model_name_or_path": str(args.gguf.parent), "gguf_file": args.gguf.name}
    model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, attn_implementation="eager").eval()
    config = json.loads(model.config.to_json_string(use_diff=False)) | {"architectures": [type(model).__name__]}
    spec = read_spec(config | {"quantization_config": None})
    begin = time.perf_counter()
    graph = capture(spec, "float32", BLOCK_SIZE)
    captured = time.perf_counter() - begin
    if args.save_graph:
        args.save_graph.write_bytes(encode(graph))
    state = model.state_dict()
    weights = {name: torch.cat([state[source] for source in part.names]) for name, part in weight_parts(spec).items()}
    tokens = AutoTokenizer.from_pretrained(**source)(TEXT)["input_ids"]
    steps = [(0, 33), (33, len(tokens) - 8), *((i, i + 1) for i in range(len(tokens) - 8, len(tokens)))]
    blocks = list(range(1, 2 + len(tokens) // BLOCK_SIZE))
    pools = make_pools(graph, len(blocks) + 1)
    chunks = [Chunk(tokens[first:end], first, blocks) for first, end in steps]
    actual = torch.cat([run_graph(graph, weights, step_inputs([chunk]), pools)["logits"] for chunk in chunks])
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    report = {
        "tokens": len(tokens),
        "nodes": len(graph.nodes),
        "capture_seconds": round(captured, 2),
        "max_logit_diff": (actual - expected).abs().max().item(),
        "max_logit": expected.abs().max().item(),
        "greedy_equal": bool((actual.argmax(-1) == expected.argmax(-1)).all()),
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
