"""`enginehouse generate`: one prompt, one answer."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from enginehouse.cli import options, show
from enginehouse.errors import InvalidArgument
from enginehouse.llm import LLM
from enginehouse.outputs import RequestOutput
from enginehouse.sampling_params import SamplingParams


def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads standard input.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Served model [the only one].")] = "",
    target: options.Target = options.TARGET,
    chat: Annotated[bool, typer.Option("--chat", help="Render the prompt with the model's chat template.")] = False,
    system: Annotated[str, typer.Option(help="System message; with --chat.")] = "",
    stream: Annotated[bool, typer.Option("--stream", help="Show tokens as they come.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256,
    temperature: Annotated[float | None, typer.Option(help="Sample at this temperature [greedy].")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this sum.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below this share of the likeliest.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random choices.")] = None,
    stop: Annotated[list[str], typer.Option(help="Text that ends the answer; may be repeated.")] = [],  # noqa: B006
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end token.")] = False,
    time_limit: Annotated[float | None, typer.Option(help="Most seconds it may take.")] = None,
    json: options.Json = False,
) -> None:
    """Generate text from a prompt."""
    text = sys.stdin.read() if prompt == "-" else prompt
    if system and not chat:
        raise typer.BadParameter("--system needs --chat")
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop or None,
        ignore_eos=ignore_eos,
    )
    name = model or _only_model(context.obj, target)
    with LLM(name, target=target, tls=context.obj.tls, token=context.obj.token) as llm:
        inputs: Any = _messages(text, system) if chat else text
        output = llm.generate_async(inputs, params, streaming=stream, time_limit=time_limit)
        _print(output, stream, json)


def _messages(text: str, system: str) -> dict[str, Any]:
    before = [{"role": "system", "content": system}] if system else []
    return {"messages": [*before, {"role": "user", "content": text}]}


def _only_model(access: options.Access, target: str) -> str:
    with access.models(target) as client:
        names = [model.name for model in client.models()]
    if len(names) == 1:
        return names[0]
    what = f"Say which model with --model: {', '.join(names)}." if names else "No model is loaded; load one first."
    raise InvalidArgument(what, reason="MODEL_NOT_GIVEN")


def _print(output: RequestOutput, stream: bool, json: bool) -> None:
    if stream:
        _print_steps(output, json)
    output.result()
    if json:
        show.print_json(_summary(output), indent=None if stream else 2)
    elif not stream:
        typer.echo(show.safe(output.outputs[0].text))


def _print_steps(output: RequestOutput, json: bool) -> None:
    begun = False
    try:
        for step in output:
            begun = True
            _print_step(step, json)
    finally:  # an error's line, or the shell's prompt, does not go on the text's line
        if begun and not json:
            typer.echo()


def _print_step(step: RequestOutput, json: bool) -> None:
    part = step.outputs[0]
    if json and part.token_ids_diff:
        show.print_json({"text": part.text_diff, "token_ids": part.token_ids_diff}, indent=None)
    elif not json:
        sys.stdout.write(show.safe(part.text_diff))
        sys.stdout.flush()


def _summary(output: RequestOutput) -> dict[str, Any]:
    first = output.outputs[0]
    return {
        "text": first.text,
        "token_ids": first.token_ids,
        "finish_reason": first.finish_reason,
        "stop_reason": first.stop_reason,
        "prompt_tokens": len(output.prompt_token_ids),
        "usage": output.usage,
    }
