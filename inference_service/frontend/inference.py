"""`InferenceService`: Generate streams, the tokenizer's calls, and what routers ask."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from engine_ops.graph import SUPPORTED_OPSETS
from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2 as pb
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2_grpc
from enginehouse.errors import InvalidArgument
from inference_service.frontend.admission import Admitter
from inference_service.frontend.checks import check_count, check_int, check_token_ids, invalid
from inference_service.frontend.clock import wall_timestamp
from inference_service.frontend.fields import HONOURED
from inference_service.frontend.load import devices, load_of
from inference_service.frontend.prompts import chat_text, need_tokenizer
from inference_service.frontend.served_model import ServedModel
from inference_service.frontend.session import GenerateSession, SessionLimits
from inference_service.models import ModelManager
from inference_service.text.tokenizer import Tokenizer

CHUNK_BYTES = 1 << 20
MAX_TEXTS = 1024
MAX_ABORTS = 1 << 16
MAX_LENGTH = 1 << 20
"""Characters, bytes or ids of one call: an encoding takes a few hundred bytes for each."""
_LIBRARIES = ("torch", "transformers", "tokenizers", "grpcio", "protobuf")


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Args:
    models: what is served.
    admitter: accepts starts; shared with nobody else.
    limits: bounds of each stream.
    max_message_bytes: the server's, for GetServerInfo.
    """

    def __init__(
        self, models: ModelManager, admitter: Admitter, limits: SessionLimits, max_message_bytes: int = 32 << 20
    ) -> None:
        self._models = models
        self._admitter = admitter
        self._limits = limits
        self._max_message_bytes = max_message_bytes
        self._sessions: set[GenerateSession] = set()
        self._start_time = time.time()

    def drain(self, grace_seconds: float) -> None:
        """Refuses starts, tells every stream, and lets each end with its last live request."""
        self._admitter.draining = True
        notice = pb.Draining(deadline=wall_timestamp(time.time() + grace_seconds), retry_after=Duration(seconds=1))
        for session in self._sessions:
            session.drain(notice)

    async def Generate(
        self, request_iterator: AsyncIterator[pb.GenerateRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        left = context.time_remaining()
        deadline = time.monotonic() + left if left is not None else None
        session = GenerateSession(self._admitter.admit, self._limits, deadline)
        self._sessions.add(session)
        try:
            await session.run(request_iterator, context.write)
        finally:
            self._sessions.discard(session)

    async def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortResponse:
        if not request.server_ids and not request.all:
            raise InvalidArgument(
                "Nothing to abort; give `server_ids`, or set `all`.",
                reason="NOTHING_TO_ABORT",
                metadata={"field": "server_ids"},
            )
        check_count("server_ids", len(request.server_ids), MAX_ABORTS)
        response = pb.AbortResponse()
        for server_id in self._admitter.live_ids() if request.all else dict.fromkeys(request.server_ids):
            live = self._admitter.live(server_id)
            if live is None:
                response.not_found.append(server_id)
                continue
            live.cancel()
            response.aborted.append(server_id)
        return response

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        tokenizer = self._tokenizer(request.model)
        _check_texts("texts", len(request.texts))
        _check_length("texts", sum(map(len, request.texts)), "characters")
        special = request.add_special_tokens if request.HasField("add_special_tokens") else True
        keep = 0
        if request.HasField("truncate_prompt_tokens"):
            keep = check_int("truncate_prompt_tokens", request.truncate_prompt_tokens, 1)
        return await self._admitter.offload(_tokenize, tokenizer, request, special, keep)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        model = self._models.find(request.model).require_ready()
        tokenizer = need_tokenizer(model.spec)
        _check_texts("sequences", len(request.sequences))
        _check_length("sequences", sum(len(each.ids) for each in request.sequences), "ids")
        sequences = [check_token_ids("sequences", each.ids, model.spec.vocab_size) for each in request.sequences]
        return await self._admitter.offload(_detokenize, tokenizer, request, sequences)

    async def ApplyChatTemplate(
        self, request: pb.ApplyChatTemplateRequest, context: Any
    ) -> pb.ApplyChatTemplateResponse:
        tokenizer = self._tokenizer(request.model)
        _check_length("chat", request.chat.ByteSize(), "bytes")
        text = await self._admitter.offload(chat_text, request.chat, tokenizer)
        ids: list[int] = []
        if request.tokenize:
            _check_length("chat", len(text), "characters")
            ids = await self._admitter.offload(_encode_rendered, tokenizer, text)
        return pb.ApplyChatTemplateResponse(text=text, token_ids=ids)

    async def GetTokenizer(self, request: pb.GetTokenizerRequest, context: Any) -> AsyncIterator[pb.TokenizerFileChunk]:
        for path in self._tokenizer(request.model).files():
            data = await asyncio.to_thread(path.read_bytes)
            for chunk in _chunks(path, data):
                yield chunk

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.ServerInfo:
        return pb.ServerInfo(
            version=importlib.metadata.version("enginehouse"),
            instance_id=self._admitter.instance_id,
            start_time=wall_timestamp(self._start_time),
            models=[model.name for model in self._models.list()],
            opsets=SUPPORTED_OPSETS,
            forms=[common_pb2.TARGET_FORM_TORCH],
            devices=await asyncio.to_thread(devices),
            libraries={name: importlib.metadata.version(name) for name in _LIBRARIES},
            features=sorted(HONOURED),
            max_message_bytes=self._max_message_bytes,
            draining=self._admitter.draining,
        )

    async def GetLoad(self, request: pb.GetLoadRequest, context: Any) -> pb.Load:
        models = [self._models.find(request.model)] if request.model else self._models.list()
        return pb.Load(models=[load_of(model) for model in models], time=wall_timestamp(time.time()))

    def _tokenizer(self, ref: str) -> Tokenizer:
        model: ServedModel = self._models.find(ref).require_ready()
        return need_tokenizer(model.spec)


def _check_texts(field: str, count: int) -> None:
    if not 1 <= count <= MAX_TEXTS:
        raise invalid(field, f"has {count} entries; give 1 to {MAX_TEXTS}.", count=count, max=MAX_TEXTS)


def _check_length(field: str, length: int, unit: str) -> None:
    if length > MAX_LENGTH:
        message = f"has {length} {unit}; send at most {MAX_LENGTH} in one call."
        raise invalid(field, message, "TOO_LONG", length=length, max=MAX_LENGTH)


def _tokenize(tokenizer: Tokenizer, request: pb.TokenizeRequest, special: bool, keep: int) -> pb.TokenizeResponse:
    response = pb.TokenizeResponse()
    for text in request.texts:
        if not request.return_offsets:
            response.results.add(token_ids=tokenizer.encode(text, add_special_tokens=special)[-keep:])
            continue
        encoded = tokenizer.encode_with_offsets(text, add_special_tokens=special)
        result = response.results.add(token_ids=encoded.token_ids[-keep:])
        result.starts.extend(start for start, _ in encoded.offsets[-keep:])
        result.ends.extend(end for _, end in encoded.offsets[-keep:])
    return response


def _detokenize(
    tokenizer: Tokenizer, request: pb.DetokenizeRequest, sequences: list[list[int]]
) -> pb.DetokenizeResponse:
    skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
    spaces = request.spaces_between_special_tokens if request.HasField("spaces_between_special_tokens") else True
    return pb.DetokenizeResponse(
        texts=[
            tokenizer.decode(ids, skip_special_tokens=skip, spaces_between_special_tokens=spaces) for ids in sequences
        ]
    )


def _encode_rendered(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def _chunks(path: Path, data: bytes) -> list[pb.TokenizerFileChunk]:
    """The file in pieces; an empty file is one empty piece. The digest is in the last one."""
    starts = range(0, max(len(data), 1), CHUNK_BYTES)
    chunks = [pb.TokenizerFileChunk(path=path.name, data=data[start : start + CHUNK_BYTES]) for start in starts]
    chunks[-1].sha256 = hashlib.sha256(data).hexdigest()
    return chunks
