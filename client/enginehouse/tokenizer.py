"""A served model's tokenizer: its files loaded here where transformers is installed, else the server's by call."""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from enginehouse import inputs
from enginehouse._calls import Calls
from enginehouse._download import write_files
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2
from enginehouse.model_client import ServedModel


class RemoteTokenizer:
    """The server's tokenizer: the part of transformers' interface that needs no files."""

    def __init__(self, calls: Calls, model: ServedModel) -> None:
        self._calls, self._model = calls, model
        self._stub = inference_pb2_grpc.InferenceServiceStub(calls.channel)

    @property
    def eos_token_id(self) -> int | None:
        return self._model.eos_token_ids[0] if self._model.eos_token_ids else None

    @property
    def bos_token_id(self) -> int | None:
        return self._model.bos_token_id

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The text's token ids."""
        request = inference_pb2.TokenizeRequest(
            model=self._model.name, texts=[text], add_special_tokens=add_special_tokens
        )
        return list(self._calls.unary(self._stub.Tokenize, request).results[0].token_ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        request = inference_pb2.DetokenizeRequest(
            model=self._model.name,
            sequences=[sampling_pb2.TokenIds(ids=token_ids)],
            skip_special_tokens=skip_special_tokens,
        )
        return str(self._calls.unary(self._stub.Detokenize, request).texts[0])

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tokenize: bool = True, **options: Any
    ) -> str | list[int]:
        """The rendered conversation: its token ids, or its text with tokenize=False. `options` as in a prompt dict;
        add_generation_prompt is False unless given, as in transformers."""
        chat = inference_pb2.ChatPrompt(add_generation_prompt=False)
        inputs.fill_messages(chat, conversation)
        for key, value in options.items():
            inputs.set_chat_option(chat, key, value)
        request = inference_pb2.ApplyChatTemplateRequest(model=self._model.name, chat=chat, tokenize=tokenize)
        response = self._calls.unary(self._stub.ApplyChatTemplate, request)
        return list(response.token_ids) if tokenize else str(response.text)


def load_tokenizer(calls: Calls, model: ServedModel, mode: str) -> Any:
    """transformers' tokenizer from the server's files, or a RemoteTokenizer where transformers is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return RemoteTokenizer(calls, model)
    with tempfile.TemporaryDirectory(prefix="enginehouse-tokenizer-") as directory:
        download_tokenizer(calls, model.name, Path(directory))
        return open_tokenizer(directory, mode)


def download_tokenizer(calls: Calls, model: str, directory: Path) -> None:
    """Writes the tokenizer's files below `directory`, checked against their digests."""
    stub = inference_pb2_grpc.InferenceServiceStub(calls.channel)
    request = inference_pb2.GetTokenizerRequest(model=model)
    with calls.endpoint.errors():
        chunks = stub.GetTokenizer(request, timeout=calls.timeout, metadata=calls.endpoint.metadata)
        write_files(chunks, directory, new_digest=hashlib.sha256, digest_field="sha256")


def open_tokenizer(path: str, mode: str, revision: str | None = None) -> Any:
    """transformers' tokenizer of a directory or hub id. Code that comes with it never runs."""
    if importlib.util.find_spec("transformers") is None:
        raise ValueError("a tokenizer given by its path needs transformers: pip install transformers")
    from transformers import AutoTokenizer

    extra = {} if revision is None else {"revision": revision}
    return AutoTokenizer.from_pretrained(path, use_fast=mode != "slow", trust_remote_code=False, **extra)
