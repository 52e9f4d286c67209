"""`inference.GRPCInferenceService`: translates between gRPC and the runtime."""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import grpc

from polyhead_proto import RPCS, SERVICE
from polyhead_server.errors import listed, quoted
from polyhead_server.inference.wire import check_small
from polyhead_server.observability.request_log import RequestLog
from polyhead_server.runtime import Runtime
from polyhead_server.transport.accept_queue import Open
from polyhead_server.transport.accepted_call import UnaryCall
from polyhead_server.transport.call import (
    INFER,
    STREAM_INFER,
    CallContext,
    StreamContext,
    abort,
    caller_deadline,
)
from polyhead_server.transport.reading import BoundedReader, RequestReader, StreamRequests
from polyhead_server.transport.stream_call import StreamCall
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

    def methods(self, requests: RequestReader, streams: BoundedReader) -> Mapping[str, Open]:
        """Return how the calls of each method are made, by its full name."""
        infer = self._observed_infer if self._observation.wanted else self._infer
        return {
            **{
                rpc.path: partial(
                    UnaryCall, answer=partial(self._call, name), reader=requests, check=check_small
                )
                for name, rpc in RPCS.items()
            },
            INFER: partial(UnaryCall, answer=infer, reader=requests),
            STREAM_INFER: partial(StreamCall, answer=self._stream_infer, reader=streams),
        }

    async def _call(self, procedure: str, payload: bytes, _context: CallContext) -> bytes:
        return await self._runtime.call(procedure, payload)

    async def _infer(self, payload: bytes, context: CallContext) -> bytes:
        try:
            deadline = caller_deadline(context)
            return await self._runtime.infer(payload, deadline=deadline, until_sent=context.add_done_callback)
        except Exception as error:  # here, where the request's record is
            await abort(context, error)

    async def _observed_infer(self, payload: bytes, context: CallContext) -> bytes:
        with self._observation.request(context):
            return await self._infer(payload, context)

    async def _stream_infer(self, requests: StreamRequests, context: StreamContext) -> None:
        await InferStream(self._runtime, self._observation, requests, context).run()


class NotOffered(grpc.GenericRpcHandler):
    """Reject the service's other procedures in words: clients of Triton have some for shared memory."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Return what answers a call that no method of ours does; None where it is of another service."""
        service, _, name = handler_call_details.method.removeprefix("/").partition("/")
        if service != SERVICE:
            return None
        advice = (
            ": send the tensors in the request" if "SharedMemory" in name else f"; there are {listed(RPCS)}"
        )

        # As a stream, so that the request is not read.
        async def reject(_requests: object, context: Any) -> AsyncIterator[bytes]:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED, f"procedure {quoted(name)} is not offered{advice}"
            )
            yield b""

        return grpc.stream_stream_rpc_method_handler(reject)
