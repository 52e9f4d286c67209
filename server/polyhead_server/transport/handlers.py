"""`inference.GRPCInferenceService`: translates between gRPC and the runtime."""

from functools import partial
from typing import Any

import grpc

from polyhead_proto import RPCS, SERVICE
from polyhead_server.observability.request_log import RequestLog
from polyhead_server.runtime import Runtime
from polyhead_server.transport.call import CallContext, StreamContext, abort, caller_deadline
from polyhead_server.transport.reading import StreamRequests
from polyhead_server.transport.streaming import InferStream


class InferenceService:
    """Handle the service's calls.

    Args:
        runtime: Answers requests.
        observation: Records every inference.
    """

    def __init__(self, runtime: Runtime, observation: RequestLog) -> None:
        self._runtime = runtime
        self._observation = observation
        self.infer = self._observed_infer if observation.wanted else self._infer
        """Handles `ModelInfer`, however its calls are accepted."""

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service for a server to add."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: unary(partial(self._call, name)) for name in RPCS
        }
        handlers["ModelInfer"] = unary(self.infer)
        handlers["ModelStreamInfer"] = stream(self.stream_infer)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _call(self, procedure: str, payload: bytes, _context: CallContext) -> bytes:
        return await self._runtime.call(procedure, payload)

    async def _infer(self, payload: bytes, context: CallContext) -> bytes:
        try:
            deadline = caller_deadline(context)
            return await self._runtime.infer(payload, deadline=deadline, until_sent=context.add_done_callback)
        except Exception as error:
            await abort(context, error)

    async def _observed_infer(self, payload: bytes, context: CallContext) -> bytes:
        with self._observation.request(context):
            return await self._infer(payload, context)

    async def stream_infer(self, requests: StreamRequests, context: StreamContext) -> None:
        """Handle `ModelStreamInfer`, however its calls are accepted."""
        try:
            await InferStream(self._runtime, self._observation, requests, context).run()
        except Exception as error:
            await abort(context, error)
