"""The Python client in one page: batch, stream, chat, and build a checkpoint.

Start the daemons first (two terminals; they share a store):

    enginehouse builder --root ~/models
    enginehouse inference

    python examples/quickstart.py ~/models/SmolLM2-135M-Instruct
"""

from __future__ import annotations

import argparse
import asyncio

from enginehouse import LLM, RequestOutput, SamplingParams


def batch(llm: LLM) -> None:
    """One call, many prompts: the server batches them in flight."""
    prompts = ["The capital of France is", "Two plus two is", "The sun rises in the"]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=12), use_tqdm=False)
    for output in outputs:
        print(f"{output.prompt!r} -> {output.outputs[0].text!r} ({output.outputs[0].finish_reason})")


async def stream(llm: LLM, name: str, temperature: float) -> RequestOutput:
    """Tokens as they come. Several of these can run at the same time, on any event loop."""
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=1)
    output = llm.generate_async("Once upon a time", params, streaming=True)
    async for step in output:
        print(f"[{name}] {step.outputs[0].text_diff!r}")
    return output


async def streams(llm: LLM) -> None:
    await asyncio.gather(stream(llm, "cold", 0.0), stream(llm, "warm", 0.8))


def chat(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Name three primary colours."}]
    output = llm.generate({"messages": messages}, SamplingParams(max_tokens=48), use_tqdm=False)
    print(output.outputs[0].text)


def main() -> None:
    parser = argparse.ArgumentParser(description="The Python client in one page.")
    parser.add_argument("checkpoint", help="directory or .gguf file under the builder's --root, or a hub id")
    parser.add_argument("--target", default="localhost:50052")
    parser.add_argument("--builder", default="localhost:50051")
    arguments = parser.parse_args()
    # Finds the engine of this checkpoint, or builds it with a progress bar; then loads it.
    with LLM(arguments.checkpoint, target=arguments.target, builder=arguments.builder) as llm:
        batch(llm)
        asyncio.run(streams(llm))
        chat(llm)


if __name__ == "__main__":
    main()
