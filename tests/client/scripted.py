"""An inference daemon with a script for a model, over real sockets: the seam where the client meets a server.

The prompt says what happens: "echo" streams `max_tokens` tokens, "slow" does so until it is cancelled, "refuse" is
refused in band, "full" finds the queue full, "break early" and "break late" end the stream before and after the request
is accepted, "drain" drains.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import grpc
from google.longrunning import operations_pb2, operations_pb2_grpc

from enginehouse._gen.enginehouse.inference.v1 import (
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    telemetry_pb2,
    telemetry_pb2_grpc,
)
from enginehouse.errors import InvalidArgument, NotFound, ResourceExhausted, Unavailable, to_status
from service_kit.status import ErrorInterceptor

Event = inference_pb2.Event


class ScriptedInference(inference_pb2_grpc.InferenceServiceServicer):
    """Records every start and metadata it sees."""

    def __init__(self) -> None:
        self.starts: list[inference_pb2.Start] = []
        self.cancelled: list[str] = []
        self.metadata: list[dict[str, str]] = []
        self.streams = 0
        self.dropped = 0
        self.breaks_left = 1
        self.live = self.most_live = 0

    async def Generate(self, requests: Any, context: Any) -> Any:
        self.streams += 1
        self.metadata.append(dict(context.invocation_metadata()))
        outbox: asyncio.Queue[list[Event] | Exception | None] = asyncio.Queue()
        flags: dict[str, asyncio.Event] = {}
        tasks: set[asyncio.Task[None]] = set()

        async def read() -> None:
            async for request in requests:
                if request.HasField("cancel"):
                    self.cancelled.append(request.cancel.request_id)
                    if (flag := flags.get(request.cancel.request_id)) is not None:
                        flag.set()
                    continue
                flag = flags[request.start.request_id] = asyncio.Event()
                task = asyncio.create_task(self._run(request.start, outbox, flag))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
            await outbox.put(None)

        reader = asyncio.create_task(read())
        try:
            while (events := await outbox.get()) is not None:
                if isinstance(events, Exception):
                    raise events
                while not outbox.empty() and isinstance(outbox._queue[0], list):  # type: ignore[attr-defined]
                    events = events + outbox.get_nowait()  # one message for many requests
                yield inference_pb2.GenerateResponse(events=events)
        except asyncio.CancelledError:
            self.dropped += 1
            raise
        finally:
            running = [reader, *tasks]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, start: inference_pb2.Start, outbox: asyncio.Queue[Any], cancel: asyncio.Event) -> None:
        self.starts.append(start)
        script = start.text or (start.chat.messages[-1].content if start.HasField("chat") else "echo")
        name = start.request_id
        if script == "refuse":
            error = InvalidArgument("The prompt is refused.", reason="SCRIPTED", metadata={"field": "prompt"})
            return await outbox.put([Event(request_id=name, error=to_status(error))])
        if script == "full" and self.breaks_left:
            self.breaks_left -= 1
            full = ResourceExhausted("The queue is full.", reason="QUEUE_FULL", retry_after=0.01)
            return await outbox.put([Event(request_id=name, error=to_status(full))])
        if script == "busy once" and self.breaks_left:
            self.breaks_left -= 1
            busy = Unavailable("Draining.", reason="DRAINING", retry_after=0.01)
            return await outbox.put([Event(request_id=name, error=to_status(busy))])
        if script.startswith("break early") and self.breaks_left:
            self.breaks_left -= 1
            return await outbox.put(Unavailable("The server goes away.", reason="SCRIPTED"))
        accepted = inference_pb2.Accepted(server_id=f"s{name}", prompt_tokens=3, model=start.model)
        await outbox.put([Event(request_id=name, accepted=accepted)])
        if script == "break late":
            return await outbox.put(Unavailable("The server goes away.", reason="SCRIPTED"))
        if script == "drain":
            await outbox.put([Event(draining=inference_pb2.Draining())])
        if not start.HasField("token_ids"):
            await outbox.put([Event(request_id=name, prompt=inference_pb2.PromptInfo(token_ids=[7, 8, 9]))])
        await self._generate(start, script, outbox, cancel)

    async def _generate(
        self, start: inference_pb2.Start, script: str, outbox: asyncio.Queue[Any], cancel: asyncio.Event
    ) -> None:
        slow = script == "slow"
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        count = start.sampling.max_tokens if start.sampling.HasField("max_tokens") else 32
        outputs = max(1, start.sampling.n)
        done = 0
        while (slow or done < count) and not cancel.is_set():
            if start.stream:
                events = [_delta(start, index, done) for index in range(outputs)]
                await outbox.put(events)
            done += 1
            await asyncio.sleep(0.01 if slow else 0)
        reason = inference_pb2.FINISH_REASON_CANCELLED if cancel.is_set() else inference_pb2.FINISH_REASON_LENGTH
        last = [_finished(start, index, done, reason) for index in range(outputs)]
        self.live -= 1
        usage = inference_pb2.Usage(prompt_tokens=3, cached_tokens=1, completion_tokens=done * outputs)
        await outbox.put([*last, Event(request_id=start.request_id, done=inference_pb2.Done(usage=usage))])

    async def Tokenize(self, request: Any, context: Any) -> Any:
        texts = [inference_pb2.TokenizedText(token_ids=list(text.encode())) for text in request.texts]
        return inference_pb2.TokenizeResponse(results=texts)

    async def Detokenize(self, request: Any, context: Any) -> Any:
        return inference_pb2.DetokenizeResponse(texts=[bytes(item.ids).decode() for item in request.sequences])

    async def ApplyChatTemplate(self, request: Any, context: Any) -> Any:
        text = "".join(f"<{message.role}>{message.content}" for message in request.chat.messages)
        return inference_pb2.ApplyChatTemplateResponse(text=text, token_ids=list(text.encode()))

    async def GetLoad(self, request: Any, context: Any) -> Any:
        return inference_pb2.Load(models=[inference_pb2.ModelLoad(model="tiny", running_requests=2)])


def _delta(start: inference_pb2.Start, index: int, position: int) -> Event:
    delta = inference_pb2.Delta(output_index=index, token_ids=[100 + position], text=f" t{position}")
    if start.output.HasField("logprobs"):
        delta.logprobs.add().top.add(token_id=100 + position, logprob=-0.5, rank=1)
    return Event(request_id=start.request_id, delta=delta)


def _finished(start: inference_pb2.Start, index: int, count: int, reason: int) -> Event:
    finished = inference_pb2.Finished(output_index=index, reason=reason, completion_tokens=count)
    if not start.stream:
        finished.token_ids.extend(range(100, 100 + count))
        finished.text = "".join(f" t{i}" for i in range(count))
    return Event(request_id=start.request_id, finished=finished)


class ScriptedModels(model_pb2_grpc.ModelServiceServicer):
    """Serves "tiny"; loads take two polls."""

    def __init__(self) -> None:
        self.models = {"tiny": _model("tiny", "engines/tiny/versions/1")}
        self.loads: list[model_pb2.LoadModelRequest] = []

    async def GetModel(self, request: Any, context: Any) -> Any:
        if request.name not in self.models:
            raise NotFound(f"Model {request.name} is not served.", reason="MODEL_NOT_FOUND")
        return self.models[request.name]

    async def ListModels(self, request: Any, context: Any) -> Any:
        names = sorted(self.models)  # one model a page
        at = names.index(request.page_token) if request.page_token else 0
        following = names[at + 1] if at + 1 < len(names) else ""
        return model_pb2.ListModelsResponse(
            models=[self.models[name] for name in names[at : at + 1]], next_page_token=following
        )

    async def LoadModel(self, request: Any, context: Any) -> Any:
        self.loads.append(request)
        name = request.model or request.engine
        model = self.models[name] = _model(name, f"engines/{request.engine}/versions/{request.version or 1}")
        operation = operations_pb2.Operation(name=f"operations/load-{name}", done=True)
        operation.response.Pack(model)
        return operation

    async def UnloadModel(self, request: Any, context: Any) -> Any:
        await self.GetModel(model_pb2.GetModelRequest(name=request.model), context)
        del self.models[request.model]
        return operations_pb2.Operation(name="operations/unload", done=True)


def _model(name: str, version: str) -> model_pb2.Model:
    model = model_pb2.Model(name=name, engine_version=version, state=model_pb2.Model.STATE_READY)
    model.eos_token_ids.append(2)
    model.load_facts.target = "torch"
    return model


class ScriptedTelemetry(telemetry_pb2_grpc.TelemetryServiceServicer):
    async def GetStats(self, request: Any, context: Any) -> Any:
        response = telemetry_pb2.GetStatsResponse()
        for iteration in range(request.after_iteration + 1, 3):
            item = response.iterations.add(iter=iteration, num_active_requests=2)
            item.iter_latency.FromMilliseconds(12)
            item.kv_cache_stats.max_num_blocks = 64
        return response

    async def StreamKvCacheEvents(self, request: Any, context: Any) -> Any:
        if request.after_sequence < 1:
            batch = telemetry_pb2.KvCacheEventBatch(sequence=1)
            batch.events.add(event_id=0).created.num_blocks_per_cache_level.append(64)
            stored = batch.events.add(event_id=1).stored
            stored.blocks.add(block_hash=b"\xab", token_ids=[1, 2], priority=35)
            yield batch
        await asyncio.sleep(30)


class RunningServer:
    """A grpc.aio server on its own thread. Port 0 takes a free one."""

    def __init__(
        self,
        register: Callable[[grpc.aio.Server], None],
        port: int = 0,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._register, self.port, self._credentials = register, port, credentials
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()
        self.target = f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        server = grpc.aio.server(interceptors=[ErrorInterceptor()])
        self._register(server)
        address = f"127.0.0.1:{self.port}"
        secure = self._credentials
        self.port = server.add_secure_port(address, secure) if secure else server.add_insecure_port(address)
        await server.start()
        self._ready.set()
        await self._end.wait()
        await server.stop(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)


class ScriptedServer(RunningServer):
    """The whole scripted inference daemon."""

    def __init__(self, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> None:
        self.inference, self.models = ScriptedInference(), ScriptedModels()
        super().__init__(self._add, port, credentials)

    def _add(self, server: grpc.aio.Server) -> None:
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self.inference, server)
        model_pb2_grpc.add_ModelServiceServicer_to_server(self.models, server)
        telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server(ScriptedTelemetry(), server)
        operations_pb2_grpc.add_OperationsServicer_to_server(operations_pb2_grpc.OperationsServicer(), server)
