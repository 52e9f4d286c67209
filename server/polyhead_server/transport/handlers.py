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
from polyhead_server.transport.accept_queue import MakeCall
from polyhead_server.transport.accepted_call import AcceptedCall
from polyhead_server.transport.call import INFER, STREAM_INFER
from polyhead_server.transport.reading import BoundedReader
from polyhead_server.transport.stream_call import StreamCall
from polyhead_server.transport.streaming import InferStream
from polyhead_server.transport.unary_call import UnaryCall


class InferenceService:
    """Handle the service's calls.

    Args:
        runtime: Answers requests.
        log: Records every inference.
    """

    def __init__(self, runtime: Runtime, log: RequestLog) -> None:
        self._runtime = runtime
        self._log = log

    def methods(self, requests: BoundedReader, streams: BoundedReader) -> Mapping[str, MakeCall]:
        """Return how the calls of each method are made, by its full name."""
        return {
            **{
                rpc.path: partial(
                    UnaryCall, answer=partial(self._call, name), reader=requests, check=check_small
                )
                for name, rpc in RPCS.items()
            },
            INFER: partial(UnaryCall, answer=self._infer, reader=requests),
            STREAM_INFER: partial(StreamCall, answer=self._stream_infer, reader=streams),
        }

    async def _call(self, procedure: str, payload: bytes, _call: AcceptedCall) -> bytes:
        return await self._runtime.call(procedure, payload)

    async def _infer(self, payload: bytes, call: AcceptedCall) -> bytes:
        with self._log.request(call):
            try:
                return await self._runtime.infer(
                    payload, deadline=call.deadline, until_sent=call.add_done_callback
                )
            except Exception as error:
                call.abort(error)

    async def _stream_infer(self, call: StreamCall) -> None:
        await InferStream(self._runtime, self._log, call).run()


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
