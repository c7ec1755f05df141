"""From what a client sends to token ids."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from enginehouse.errors import FailedPrecondition, InvalidArgument
from inference_service.frontend.checks import check_int, check_token_ids, invalid
from inference_service.text.tokenizer import Tokenizer
from service_kit.fields import refuse_unsupported

_CHAT_FIELDS = frozenset({"messages", "add_generation_prompt", "continue_final_message", "template_kwargs", "tools"})


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What a request is held to. Counts of tokens."""

    vocab_size: int
    max_seq_len: int
    """Prompt and output together; what the KV cache can hold at most is already counted in."""
    max_prompt_tokens: int
    eos_token_ids: tuple[int, ...]
    use_priority: bool
    tokenizer: Tokenizer | None


class Prompt(NamedTuple):
    """`info`: whether the client is told the ids; `text` only for a rendered chat."""

    token_ids: list[int]
    info: bool = False
    text: str = ""


def encode_prompt(start: pb.Start, spec: ModelSpec) -> Prompt:
    """The prompt's ids. Takes time with the prompt's length: call it off the event loop when that is large.

    Raises:
        FailedPrecondition: the engine has no tokenizer or no chat template.
        InvalidArgument: the prompt is empty, too long or has ids outside the vocabulary.
    """
    keep = None
    if start.HasField("truncate_prompt_tokens"):
        keep = check_int("truncate_prompt_tokens", start.truncate_prompt_tokens, 1)
    prompt = _encode(start, spec, keep)
    if not prompt.token_ids:
        raise InvalidArgument(
            "The prompt has no tokens; give at least one.", reason="EMPTY_PROMPT", metadata={"field": "prompt"}
        )
    return prompt if keep is None else prompt._replace(token_ids=prompt.token_ids[-keep:])


def prompt_chars(start: pb.Start) -> int:
    """A measure of how long encoding takes."""
    kind = start.WhichOneof("prompt")
    if kind == "token_ids":
        return len(start.token_ids.ids)
    return len(start.text) if kind == "text" else start.chat.ByteSize() if kind == "chat" else 0


def chat_text(chat: pb.ChatPrompt, tokenizer: Tokenizer) -> str:
    """Renders a chat with the model's template. Refuses what is not honoured by name."""
    refuse_unsupported(
        chat, {"messages", "add_generation_prompt", "continue_final_message", "template_kwargs", "tools"}
    )
    if not chat.messages:
        raise invalid("chat.messages", "is empty; give at least one message.", "EMPTY_PROMPT")
    open_turn = (
        chat.add_generation_prompt if chat.HasField("add_generation_prompt") else not chat.continue_final_message
    )
    if open_turn and chat.continue_final_message:
        raise invalid("chat.continue_final_message", "excludes `add_generation_prompt`; set one.", "CONFLICT")
    return tokenizer.render_chat(
        [_message(message) for message in chat.messages],
        add_generation_prompt=open_turn,
        continue_final_message=chat.continue_final_message,
        tools=[plain_value(tool) for tool in chat.tools],
        options=plain_value(chat.template_kwargs),
    )


def plain_value(value: Any) -> Any:
    """A google.protobuf Struct, Value or ListValue as Python data; whole numbers become int."""
    if hasattr(value, "fields"):
        return {key: plain_value(item) for key, item in value.fields.items()}
    if hasattr(value, "values"):
        return [plain_value(item) for item in value.values]
    kind = value.WhichOneof("kind")
    if kind in ("struct_value", "list_value"):
        return plain_value(getattr(value, kind))
    if kind == "number_value":
        number = value.number_value
        return int(number) if math.isfinite(number) and number == int(number) else number
    return None if kind in (None, "null_value") else getattr(value, kind)


def need_tokenizer(spec: ModelSpec) -> Tokenizer:
    if spec.tokenizer is None:
        raise FailedPrecondition(
            "The model's engine has no tokenizer; send `token_ids` and set `detokenize` to false.",
            reason="NO_TOKENIZER",
        )
    return spec.tokenizer


def _encode(start: pb.Start, spec: ModelSpec, keep: int | None) -> Prompt:
    """`keep`: how many of the last tokens will be kept; None: all, so that what is too long need not be looked at."""
    kind = start.WhichOneof("prompt")
    if kind == "token_ids":
        ids = start.token_ids.ids
        if keep is None:
            check_prompt_tokens(len(ids), spec)
        return Prompt(check_token_ids("token_ids", ids, spec.vocab_size))
    tokenizer = need_tokenizer(spec)
    if kind == "text":
        _check_chars("text", len(start.text), spec)
        special = start.add_special_tokens if start.HasField("add_special_tokens") else True
        return Prompt(tokenizer.encode(start.text, add_special_tokens=special), info=True)
    _check_chars("chat", start.chat.ByteSize(), spec)
    text = chat_text(start.chat, tokenizer)
    return Prompt(tokenizer.encode(text, add_special_tokens=start.add_special_tokens), info=True, text=text)


def check_prompt_tokens(count: int, spec: ModelSpec) -> None:
    """Refuses a prompt that leaves no room for a token, or is longer than the model takes."""
    most = min(spec.max_seq_len - 1, spec.max_prompt_tokens)
    if count > most:
        raise invalid(
            "prompt",
            f"has {count} tokens; this model takes at most {most} (max_seq_len {spec.max_seq_len}). Shorten it or set "
            "`truncate_prompt_tokens`.",
            "PROMPT_TOO_LONG",
            prompt_tokens=count,
            max_prompt_tokens=most,
            max_seq_len=spec.max_seq_len,
        )


def _check_chars(field: str, chars: int, spec: ModelSpec) -> None:
    """No tokenizer packs more than a few hundred characters into a token: what is longer cannot fit."""
    most = 512 * spec.max_seq_len
    if chars > most:
        raise invalid(
            field,
            f"has {chars} characters, far more than the model's {spec.max_seq_len} tokens can hold.",
            "PROMPT_TOO_LONG",
            characters=chars,
            max_seq_len=spec.max_seq_len,
        )


def _message(message: pb.ChatMessage) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if not message.role:
        raise invalid("chat.messages.role", "is empty; name who speaks.", "EMPTY_ROLE")
    if message.name:
        plain["name"] = message.name
    if message.tool_calls:
        plain["tool_calls"] = [plain_value(call) for call in message.tool_calls]
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    return plain
