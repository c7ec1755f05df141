"""`LLM`: TensorRT-LLM's generate and generate_async, over the network."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, overload

from tqdm import tqdm

from enginehouse import _check as check
from enginehouse._find_or_build import find_or_build
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2
from enginehouse._inbox import Inbox
from enginehouse._stream import GenerateStream
from enginehouse._telemetry import Telemetry
from enginehouse.builder_client import BuilderClient
from enginehouse.connection import INFERENCE_TARGET, TlsConfig
from enginehouse.errors import NotFound
from enginehouse.inputs import Prompt, PromptInputs, fill, is_single, parse_prompt
from enginehouse.llm_args import LlmArgs
from enginehouse.model_client import ModelClient, ServedModel
from enginehouse.outputs import RequestOutput, RequestSetup
from enginehouse.requests import (
    DisaggregatedParams,
    KvCacheRetentionConfig,
    LoRARequest,
    PromptAdapterRequest,
    RequestOptions,
)
from enginehouse.sampling_params import SamplingParams
from enginehouse.tokenizer import load_tokenizer, open_tokenizer

WINDOW = 512


class LLM:
    """A language model on an inference daemon.

    Args:
        model: a served model's name (`name`, `name@version`, `name@alias`); or with `builder` a checkpoint to find or
            build first and load: a directory or GGUF file on the builder's machine, a hub id `org/model`, or
            `org/repo:file.gguf`.
        tokenizer: used here for text prompts and by `tokenizer`: an object like transformers', or a path or hub id
            that transformers opens. None: the server tokenizes.
        tokenizer_mode: "auto" or "slow".
        skip_tokenizer_init: use no tokenizer at all: prompts and outputs are token ids.
        trust_remote_code: refused when True.
        tensor_parallel_size: ranks that share each layer; with `builder`.
        dtype: "auto", "float32", "float16" or "bfloat16"; with `builder`.
        revision: of a hub checkpoint; with `builder`.
        tokenizer_revision: of a hub tokenizer given by `tokenizer`.
        target: HOST:PORT of the inference daemon.
        builder: HOST:PORT of a builder daemon, or a BuilderClient. Both daemons share one engine store.
        tls: TLS settings for both daemons; None speaks plain text.
        token: sent as a bearer token to both daemons.
        use_tqdm: show a progress bar of the build.
        keywords: the fields of LlmArgs, for example kv_cache_config, scheduler_config, build_config, quant_config,
            max_batch_size, max_num_tokens, max_seq_len, enable_chunked_prefill, timeout.

    Raises:
        ValueError: an argument is unknown, wrong, or cannot be honoured over the network.
        EnginehouseError: no daemon answers, the model is not served, or the build or load failed.

    An LLM can be used from several threads and event loops. Close it with `shutdown()` or as a context manager.
    """

    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        *,
        target: str = INFERENCE_TARGET,
        builder: str | BuilderClient | None = None,
        tls: TlsConfig | None = None,
        token: str | None = None,
        use_tqdm: bool = True,
        **keywords: Any,
    ) -> None:
        shared = {"tensor_parallel_size": tensor_parallel_size, "dtype": dtype, "revision": revision}
        self.args = LlmArgs.parse({**keywords, **shared, "trust_remote_code": trust_remote_code})
        check.one_of("tokenizer_mode", tokenizer_mode, ("auto", "slow"))
        if builder is None and (names := self.args.changed()):
            raise ValueError(f"{', '.join(names)}: only with builder=; without it the model is served as it was loaded")
        self._skip_tokenizer, self._tokenizer_mode = skip_tokenizer_init, tokenizer_mode
        if isinstance(tokenizer, str | Path):
            tokenizer = open_tokenizer(str(tokenizer), tokenizer_mode, tokenizer_revision)
        self._own_tokenizer, self._served_tokenizer = tokenizer, None
        self._llm_id: str | None = None
        self._ids = itertools.count(1)
        self._builder_access = (builder, tls, token)
        self._models = ModelClient(target, tls=tls, token=token, timeout=self.args.timeout)
        try:
            self._model = self._attach(str(model), model, use_tqdm)
        except BaseException:
            self._models.close()
            raise
        self._model_name = str(model) if builder is None else self._model.name
        self._telemetry = Telemetry(self._models._calls, self._model.name)
        self._stream = GenerateStream(self._models._calls.endpoint)
        # Runs at shutdown(), when the LLM is collected, or at exit: whichever comes first.
        self._finalizer = weakref.finalize(self, _close, self._stream, self._models)

    def _attach(self, name: str, source: str | Path, use_tqdm: bool) -> ServedModel:
        builder, tls, token = self._builder_access
        if builder is not None:
            return find_or_build(source, builder, self._models, self.args, tls=tls, token=token, use_tqdm=use_tqdm)
        try:
            return self._models.wait_ready(name.partition("@")[0], self.args.load_timeout)
        except NotFound as error:
            served = ", ".join(model.name for model in self._models.models()) or "none"
            raise NotFound(
                f"Model {name} is not served at {self._models._calls.endpoint.target} (served: {served}). Load it with "
                f"`enginehouse models load ENGINE`, or pass builder= to build a checkpoint.",
                reason="MODEL_NOT_FOUND",
                metadata={"model": name},
            ) from error

    # Generation

    @overload
    def generate(self, inputs: str | list[int] | Mapping[str, Any], *args: Any, **options: Any) -> RequestOutput: ...

    @overload
    def generate(self, inputs: Sequence[PromptInputs], *args: Any, **options: Any) -> list[RequestOutput]: ...

    def generate(
        self,
        inputs: PromptInputs | Sequence[PromptInputs],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        prompt_adapter_request: PromptAdapterRequest | Sequence[PromptAdapterRequest | None] | None = None,
        kv_cache_retention_config: KvCacheRetentionConfig | Sequence[KvCacheRetentionConfig | None] | None = None,
        disaggregated_params: DisaggregatedParams | Sequence[DisaggregatedParams | None] | None = None,
        cache_salt: str | Sequence[str | None] | None = None,
        *,
        priority: float | Sequence[float | None] | None = None,
        time_limit: float | Sequence[float | None] | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """Generates and waits for all outputs. If one request fails, the others are aborted and its error raised.

        Args:
            inputs: one prompt (text, token ids, or a dict, see PromptInputs) or a list of them.
            sampling_params: for all prompts, or a list with one for each. It is never changed. None: greedy.
            use_tqdm: show a progress bar.
            lora_request, prompt_adapter_request, kv_cache_retention_config, disaggregated_params, cache_salt,
                priority, time_limit: one for all prompts, or a list with one for each; see RequestOptions.

        Returns:
            One RequestOutput for one prompt, a list for a list.
        """
        single = is_single(inputs)
        prompts: Sequence[Any] = [inputs] if single else list(inputs)
        sides = {
            "lora_request": lora_request,
            "prompt_adapter_request": prompt_adapter_request,
            "kv_cache_retention_config": kv_cache_retention_config,
            "disaggregated_params": disaggregated_params,
            "cache_salt": cache_salt,
            "priority": priority,
            "time_limit": time_limit,
        }
        params = _spread("sampling_params", sampling_params, len(prompts))
        spread = {name: _spread(name, value, len(prompts)) for name, value in sides.items()}
        requests = [
            self._prepare(prompt, params[i], RequestOptions(**{name: row[i] for name, row in spread.items()}))
            for i, prompt in enumerate(prompts)
        ]
        outputs = self._run(requests, use_tqdm)
        return outputs[0] if single else outputs

    def _run(self, requests: list[tuple[inference_pb2.Start, RequestSetup]], use_tqdm: bool) -> list[RequestOutput]:
        """Runs requests to their ends, at most WINDOW at the same time: more would only overflow the server's queue."""
        outputs: list[RequestOutput] = []
        progress = tqdm(total=len(requests), desc="Processed requests", dynamic_ncols=True, disable=not use_tqdm)
        try:
            with progress:
                for index in range(len(requests) + WINDOW):
                    if index < len(requests):
                        outputs.append(self._submit(*requests[index], patient=True))
                    if index >= WINDOW:
                        outputs[index - WINDOW].result()
                        progress.update()
        except BaseException:
            for output in outputs:
                output.abort()
            raise
        return outputs

    def generate_async(
        self,
        inputs: PromptInputs,
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
        streaming: bool = False,
        kv_cache_retention_config: KvCacheRetentionConfig | None = None,
        disaggregated_params: DisaggregatedParams | None = None,
        cache_salt: str | None = None,
        *,
        priority: float | None = None,
        time_limit: float | None = None,
        stream_interval: int | None = None,
    ) -> RequestOutput:
        """Starts one request and returns at once.

        Args:
            inputs: one prompt: text, token ids, or a dict, see PromptInputs.
            streaming: tokens arrive as they are generated: iterate over the RequestOutput (`async for` or `for`).

        The rest is as in `generate`.
        """
        if not is_single(inputs):
            raise ValueError("generate_async takes one prompt; use generate for a list")
        options = RequestOptions(
            lora_request=lora_request,
            prompt_adapter_request=prompt_adapter_request,
            kv_cache_retention_config=kv_cache_retention_config,
            disaggregated_params=disaggregated_params,
            cache_salt=cache_salt,
            priority=priority,
            time_limit=time_limit,
            stream_interval=stream_interval,
        )
        return self._submit(*self._prepare(inputs, sampling_params, options, streaming=streaming))

    def _prepare(
        self, inputs: PromptInputs, params: SamplingParams | None, options: RequestOptions, *, streaming: bool = False
    ) -> tuple[inference_pb2.Start, RequestSetup]:
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params must be a SamplingParams, not {type(params).__name__}")
        params.validate()
        prompt = parse_prompt(inputs)
        request_id = next(self._ids)
        with check.valid_text():
            start = params.to_proto()
            start.request_id, start.model, start.stream = str(request_id), self._model_name, streaming
            options.fill(start)
            fill(start, self._tokenized(prompt, params))
        if self._skip_tokenizer:
            start.output.detokenize = False
        return start, RequestSetup(
            request_id=request_id,
            prompt=prompt.text,
            prompt_token_ids=list(start.token_ids.ids) if start.HasField("token_ids") else None,
            n=params.n,
            streaming=streaming,
            inbox=Inbox(),
            abort=partial(self._abort, str(request_id)),
        )

    def _tokenized(self, prompt: Prompt, params: SamplingParams) -> Prompt:
        """The prompt as it travels: with token ids when this client has its own tokenizer."""
        if self._skip_tokenizer and (prompt.token_ids is None and "prompt_embeddings" not in prompt.extras):
            raise ValueError("with skip_tokenizer_init=True a prompt must be token ids")
        if self._own_tokenizer is None or prompt.text is None or prompt.token_ids is not None:
            return prompt
        ids = self._own_tokenizer.encode(prompt.text, add_special_tokens=params.add_special_tokens)
        return prompt._replace(token_ids=list(ids))

    def _submit(self, start: inference_pb2.Start, setup: RequestSetup, *, patient: bool = False) -> RequestOutput:
        self._stream.submit(start, setup.inbox, patient=patient)
        return RequestOutput(setup)

    def _abort(self, request_id: str) -> None:
        self._stream.cancel(request_id)

    # The model

    @property
    def llm_id(self) -> str:
        """A name for this object: host, process and time."""
        if self._llm_id is None:
            self._llm_id = f"{socket.gethostname()}-{os.getpid()}-{int(time.time() * 1000)}"
        return self._llm_id

    @property
    def model(self) -> ServedModel:
        """The served model as it was when this object was made."""
        return self._model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that was set, else the served model's: transformers' where that is installed, else a
        RemoteTokenizer. None with skip_tokenizer_init. Setting one tokenizes text prompts with it, here."""
        if self._skip_tokenizer:
            return None
        if self._own_tokenizer is not None:
            return self._own_tokenizer
        if self._served_tokenizer is None:
            self._served_tokenizer = load_tokenizer(self._models._calls, self._model, self._tokenizer_mode)
        return self._served_tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self._own_tokenizer = tokenizer

    def get_stats(self, timeout: float | None = 2) -> list[dict[str, Any]]:
        """Statistics of the executor's steps since the last call, the earliest first, under TensorRT-LLM's names.
        Waits up to `timeout` seconds for a step when there is none."""
        return self._telemetry.stats(timeout)

    async def get_stats_async(self, timeout: float | None = 2) -> AsyncIterator[dict[str, Any]]:
        """The same, one by one, until no step comes for `timeout` seconds."""
        while found := await asyncio.to_thread(self.get_stats, timeout):
            for item in found:
                yield item

    def get_kv_cache_events(self, timeout: float | None = 2) -> list[dict[str, Any]]:
        """The KV cache's events since the last call. Listens for `timeout` seconds."""
        return self._telemetry.kv_cache_events(timeout)

    def save(self, engine_dir: str | Path) -> None:
        """Copies the engine that is served into a directory. Needs `builder`."""
        builder, tls, token = self._builder_access
        if builder is None:
            raise ValueError("save() needs builder=, the daemon that has the engine's files")
        if isinstance(builder, BuilderClient):
            builder.download(self._model.engine_version, engine_dir)
            return
        with BuilderClient(builder, tls=tls, token=token) as client:
            client.download(self._model.engine_version, engine_dir)

    # Life

    def shutdown(self) -> None:
        """Closes the connections; live requests fail with Cancelled. The model stays loaded. Idempotent."""
        if hasattr(self, "_finalizer"):
            self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __getstate__(self) -> NoReturn:
        raise RuntimeError("an LLM cannot be pickled: make one in each process")

    def __repr__(self) -> str:
        return f"LLM({self._model_name!r}, target={self._models._calls.endpoint.target!r})"


def _close(stream: GenerateStream, models: ModelClient) -> None:
    stream.close()
    models.close()


def _spread(name: str, value: Any, count: int) -> Sequence[Any]:
    """One value for each prompt. Raises ValueError when a list has another length."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} items for {count} prompts: give one for all, or one for each")
    return value
