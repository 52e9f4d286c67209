"""The remote procedures, from the RPC table to functions."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import grpc
from google.protobuf.message import Message

from polyhead_proto import RPCS, SERVICE, Rpc
from polyhead_proto import messages as pb
from polyhead_server.errors import UnknownModelError
from polyhead_server.inference.inference import Inference
from polyhead_server.inference.wire import LARGE, parse
from polyhead_server.observability.request_log import RequestLog
from polyhead_server.serving.budget import Budget
from polyhead_server.serving.catalogue import (
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
    server_metadata,
)
from polyhead_server.serving.lifecycle import Lifecycle
from polyhead_server.serving.registry import Model, Registry, State
from polyhead_server.settings import Settings
from polyhead_server.transport.aborting import Context, abort, refusal_of
from polyhead_server.transport.deadlines import Patience
from polyhead_server.transport.management import Management
from polyhead_server.transport.reception import Requests
from polyhead_server.transport.streaming import (
    Turn,
    answer_in_stream,
    answer_stream,
    refuse_in_stream,
    send,
    wants_status,
)


class Service:
    """`inference.GRPCInferenceService`.

    Args:
        registry: The models.
        lifecycle: The server's readiness.
        inference: Answers inference requests.
        budget: What may be held for callers.
        settings: The limits, which metadata publishes.
        observation: Told of every inference.
        management: Loads and unloads models.
    """

    def __init__(
        self,
        registry: Registry,
        lifecycle: Lifecycle,
        inference: Inference,
        settings: Settings,
        *,
        budget: Budget,
        observation: RequestLog,
        management: Management,
    ) -> None:
        self._observation = observation
        self._registry = registry
        self._lifecycle = lifecycle
        self._inference = inference
        self._budget = budget
        self._patience = Patience(settings.max_request_seconds)
        self._answers: dict[str, Callable[[Any], Message]] = {
            "ServerLive": lambda _: pb.ServerLiveResponse(live=True),
            "ServerReady": lambda _: pb.ServerReadyResponse(ready=lifecycle.ready),
            "ServerMetadata": lambda _: server_metadata(settings),
            "ModelReady": self._model_ready,
            "ModelMetadata": lambda request: model_metadata(self._find(request), registry, settings),
            "ModelConfig": lambda request: model_config(self._find(request), settings),
            "RepositoryIndex": lambda request: repository_index(registry, ready_only=request.ready),
        }
        self._orders: dict[str, Callable[[Any], Awaitable[Message]]] = {
            "RepositoryModelLoad": management.load,
            "RepositoryModelUnload": management.unload,
        }
        self._lookups: dict[str, Callable[[Any], Awaitable[Message]]] = {
            "ModelStatistics": self._model_statistics
        }

    def handler(self) -> grpc.GenericRpcHandler:
        """The service for a server to add; what it lacks, gRPC answers with UNIMPLEMENTED."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for name, rpc in RPCS.items():
            if name == "ModelInfer":
                infer = self._observed_infer if self._observation.wanted else self._model_infer
                handlers[name] = grpc.unary_unary_rpc_method_handler(infer)
            elif name == "ModelStreamInfer":
                handlers[name] = grpc.stream_stream_rpc_method_handler(self._model_stream_infer)
            elif name in self._orders:
                handlers[name] = grpc.unary_unary_rpc_method_handler(self._order(rpc))
            elif name in self._lookups:
                handlers[name] = grpc.unary_unary_rpc_method_handler(self._lookup(rpc))
            else:
                handlers[name] = grpc.unary_unary_rpc_method_handler(self._simple(rpc))
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _simple(self, rpc: Rpc) -> Callable[[bytes, Context], Awaitable[bytes]]:
        """A procedure that only looks something up."""
        answer = self._answers[rpc.name]

        async def handle(payload: bytes, context: Context) -> bytes:
            try:
                return answer(parse(rpc.request, payload)).SerializeToString()
            except Exception as error:
                await abort(context, error)

        return handle

    def _lookup(self, rpc: Rpc) -> Callable[[bytes, Context], Awaitable[bytes]]:
        """A procedure that looks for long."""
        look_up = self._lookups[rpc.name]

        async def handle(payload: bytes, context: Context) -> bytes:
            try:
                return (await look_up(parse(rpc.request, payload))).SerializeToString()
            except Exception as error:
                await abort(context, error)

        return handle

    def _order(self, rpc: Rpc) -> Callable[[bytes, Context], Awaitable[bytes]]:
        """A procedure that changes what is served."""
        follow = self._orders[rpc.name]

        async def handle(payload: bytes, context: Context) -> bytes:
            try:
                with self._lifecycle.accept():
                    return (await follow(parse(rpc.request, payload))).SerializeToString()
            except Exception as error:
                await abort(context, error)

        return handle

    async def _model_infer(self, payload: bytes, context: Context) -> bytes:
        try:
            with self._lifecycle.accept(), self._budget.reserve(len(payload)) as held:
                deadline = self._patience.deadline(self._patience.ends(context))
                reply = await self._inference.answer(payload, deadline, held)
                if len(reply) >= LARGE:  # a smaller one is gone when gRPC has it
                    release = held.keep()
                    context.add_done_callback(lambda _: release())  # type: ignore[arg-type]
                return reply
        except Exception as error:
            await abort(context, error)

    async def _observed_infer(self, payload: bytes, context: Context) -> bytes:
        with self._observation.request(context):
            return await self._model_infer(payload, context)

    async def _model_stream_infer(self, requests: Requests, context: Context) -> None:
        observed = self._observation.request if self._observation.wanted else nullcontext
        ends = self._patience.ends(context)

        async def answer(payload: bytes, turn: Turn) -> None:
            with observed(context), requests.at_work():
                try:
                    await self._answer_in_turn(payload, turn, requests, context, ends)
                except Exception:
                    await turn.come()  # what ends the stream does so after the answers before it
                    raise

        try:
            await answer_stream(requests, self._lifecycle, answer)
        except Exception as error:
            await abort(context, error)

    async def _answer_in_turn(
        self, payload: bytes, turn: Turn, requests: Requests, context: Context, ends: float
    ) -> None:
        async def write(message: bytes) -> None:
            with requests.at_rest():
                await turn.come()
                await send(context, message)

        with self._lifecycle.accept():
            deadline = self._patience.deadline(ends)
            timer = self._patience.cut_off(deadline)
            try:
                with self._budget.reserve(len(payload)) as held:
                    await answer_in_stream(self._inference, payload, deadline, held, write)
            except Exception as error:
                if wants_status(context):
                    raise
                await write(refuse_in_stream(refusal_of(context, error), payload))
            finally:
                timer.cancel()

    def _find(self, request: Any) -> Model:
        return self._registry.find(request.name, request.version)

    def _model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        try:
            slot = self._registry.slot(request.name, request.version)
        except UnknownModelError:  # as Triton has it: what is not there is not ready
            return pb.ModelReadyResponse(ready=False)
        ready = slot.state is State.READY and not self._lifecycle.draining.is_set()
        return pb.ModelReadyResponse(ready=ready)

    async def _model_statistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        if request.name:
            models = [self._registry.find(request.name, request.version)]
        else:
            models = self._registry.models()
        return await asyncio.to_thread(model_statistics, models, self._registry.counters)
