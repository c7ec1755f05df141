"""What `LLM.generate` takes as a prompt, and how it travels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from enginehouse import _check as check
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2

PromptInputs: TypeAlias = "str | list[int] | Mapping[str, Any]"
"""A text; token ids; or a dict with one of `prompt`, `prompt_token_ids`, `messages` (a chat), `prompt_embeddings`,
and beside it `query_token_ids`, `multi_modal_data`, `mm_processor_kwargs`, and for a chat `add_generation_prompt`,
`continue_final_message`, `chat_template`, `template_kwargs`, `tools`."""

_KINDS = ("prompt", "prompt_token_ids", "messages", "prompt_embeddings")
_CHAT_OPTIONS = ("add_generation_prompt", "continue_final_message", "chat_template", "template_kwargs", "tools")
_BESIDE = ("query_token_ids", "multi_modal_data", "mm_processor_kwargs")
_MODALITIES = {
    "image": inference_pb2.MODALITY_IMAGE,
    "audio": inference_pb2.MODALITY_AUDIO,
    "video": inference_pb2.MODALITY_VIDEO,
}


class Prompt(NamedTuple):
    """A checked prompt. `text` and `token_ids` are what the caller gave, None where it did not."""

    text: str | None
    token_ids: list[int] | None
    extras: Mapping[str, Any]
    """The caller's dict without `prompt` and `prompt_token_ids`."""


def is_single(inputs: object) -> bool:
    """Whether `inputs` is one prompt: anything but a list or tuple, or a list of ints."""
    return not isinstance(inputs, list | tuple) or (len(inputs) > 0 and isinstance(inputs[0], int))


def parse_prompt(inputs: PromptInputs) -> Prompt:
    """Checks one prompt.

    Raises:
        TypeError: it is neither str, list of ints nor dict.
        ValueError: a dict has no prompt, two of them, or an unknown key; or there is no token.
    """
    if isinstance(inputs, str):
        return Prompt(inputs, None, {})
    if isinstance(inputs, list | tuple):
        return Prompt(None, _token_ids("prompt_token_ids", inputs), {})
    if not isinstance(inputs, Mapping):
        raise TypeError(f"a prompt must be a str, a list of ints or a dict, not {type(inputs).__name__}")
    return _parse_dict(inputs)


def _parse_dict(inputs: Mapping[str, Any]) -> Prompt:
    values = {key: value for key, value in inputs.items() if value is not None}
    if unknown := sorted(values.keys() - {*_KINDS, *_CHAT_OPTIONS, *_BESIDE}):
        raise ValueError(f"a prompt has no key {', '.join(map(repr, unknown))}")
    kinds = [kind for kind in _KINDS if kind in values]
    if "prompt_token_ids" in kinds and "prompt" in kinds:  # the text is for display: the ids are the prompt
        kinds.remove("prompt")
    if len(kinds) != 1:
        raise ValueError(f"a prompt needs exactly one of {', '.join(_KINDS)}, not {', '.join(kinds) or 'none'}")
    if "messages" not in kinds and (chat := [name for name in _CHAT_OPTIONS if name in values]):
        raise ValueError(f"{', '.join(chat)} need messages")
    text, ids = values.pop("prompt", None), values.pop("prompt_token_ids", None)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"prompt must be a str, not {type(text).__name__}")
    return Prompt(text, None if ids is None else _token_ids("prompt_token_ids", ids), values)


def _token_ids(name: str, ids: Any) -> list[int]:
    if hasattr(ids, "tolist"):  # a numpy array or a tensor
        ids = ids.tolist()
    check.integers(name, ids)
    if not ids:
        raise ValueError(f"{name} must hold at least one token")
    return list(ids)


def fill(start: inference_pb2.Start, prompt: Prompt) -> None:
    """Writes the prompt into a request's Start."""
    if prompt.token_ids is not None:
        start.token_ids.ids.extend(prompt.token_ids)
    elif prompt.text is not None:
        start.text = prompt.text
    for key, value in prompt.extras.items():
        if key in _WRITERS:
            _WRITERS[key](start, value)
    for key in _CHAT_OPTIONS:
        if key in prompt.extras:
            set_chat_option(start.chat, key, prompt.extras[key])


def fill_messages(chat: inference_pb2.ChatPrompt, messages: Sequence[Mapping[str, Any]]) -> None:
    """Writes a conversation, a list of dicts with `role` and `content`, into the wire's message."""
    if isinstance(messages, str | Mapping) or not messages:
        raise ValueError("messages must be a list of dicts with role and content")
    for message in messages:
        known = ("role", "content", "name", "tool_calls", "tool_call_id")
        if unknown := sorted(message.keys() - set(known)):
            raise ValueError(f"a message has no key {', '.join(map(repr, unknown))}")
        fields = {key: message[key] for key in ("role", "content", "name", "tool_call_id") if message.get(key)}
        if not all(isinstance(value, str) for value in fields.values()):
            raise ValueError("role, content, name and tool_call_id of a message must be str")
        item = chat.messages.add(**fields)
        for call in message.get("tool_calls") or ():
            item.tool_calls.add().update(dict(call))


def set_chat_option(chat: inference_pb2.ChatPrompt, key: str, value: Any) -> None:
    if key == "tools":
        for tool in value:
            chat.tools.add().update(dict(tool))
    elif key == "template_kwargs":
        chat.template_kwargs.update(dict(value))
    else:
        setattr(chat, key, value)


def _fill_embeddings(start: inference_pb2.Start, value: Any) -> None:
    import numpy as np

    array = np.ascontiguousarray(value, dtype="<f4")
    if array.ndim != 2:
        raise ValueError(f"prompt_embeddings must be [tokens, hidden size], not of shape {array.shape}")
    tensor = common_pb2.Tensor(dtype=common_pb2.DATA_TYPE_FLOAT32, shape=array.shape, data=array.tobytes())
    start.embeddings.CopyFrom(tensor)


def _fill_multimodal(start: inference_pb2.Start, data: Mapping[str, Any]) -> None:
    for name, items in data.items():
        if name not in _MODALITIES:
            raise ValueError(f"multi_modal_data has no key {name!r}; it takes {', '.join(_MODALITIES)}")
        for item in items if isinstance(items, list | tuple) else [items]:
            if not isinstance(item, str | bytes):
                raise ValueError(f"an {name} must be the bytes of a file or a URL, not {type(item).__name__}")
            source = {"uri": item} if isinstance(item, str) else {"data": item}
            start.multimodal.add(modality=_MODALITIES[name], **source)


_WRITERS: dict[str, Callable[[inference_pb2.Start, Any], None]] = {
    "messages": lambda start, value: fill_messages(start.chat, value),
    "prompt_embeddings": _fill_embeddings,
    "query_token_ids": lambda start, value: start.query_token_ids.extend(_token_ids("query_token_ids", value)),
    "multi_modal_data": _fill_multimodal,
    "mm_processor_kwargs": lambda start, value: start.mm_processor_kwargs.update(dict(value)),
}
