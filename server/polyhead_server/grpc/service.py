"""`inference.GRPCInferenceService`: translates between gRPC and the runtime."""

from functools import partial

import grpc

from polyhead_proto import RPCS, SERVICE
from polyhead_server.errors import listed, quoted
from polyhead_server.grpc.call import (
    Call,
    MethodHandler,
    deadline_of,
    fail,
    one_reply,
    read,
    rejecting,
    unary,
)
from polyhead_server.grpc.stream import InferStream
from polyhead_server.observability.access_log import RequestLog
from polyhead_server.runtime import Runtime


class InferenceService:
    """Handle the service's calls.

    Args:
        runtime: Answers requests.
        log: Records every inference.
    """

    def __init__(self, runtime: Runtime, log: RequestLog) -> None:
        self._runtime = runtime
        self._log = log

    def handlers(self) -> dict[str, MethodHandler]:
        """Return the handler of each method, by its name."""
        return {
            **{name: unary(partial(self._runtime.call, name)) for name in RPCS},
            "ModelInfer": one_reply(self._infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._stream_infer),
        }

    async def _infer(self, _requests: object, call: Call) -> bytes:
        deadline = deadline_of(call)
        try:
            payload = await read(call)
        except Exception as error:
            self._runtime.registry.unattributed.failed(total_ns=0, error=error)
            await fail(call, error)
        with self._log.request(call):
            try:
                return await self._runtime.infer(
                    payload,
                    deadline=deadline,
                    until_sent=call.add_done_callback,  # type: ignore[arg-type]
                )
            except Exception as error:
                await fail(call, error)

    async def _stream_infer(self, _requests: object, call: Call) -> None:
        await InferStream(self._runtime, self._log, call).run()


class NotOffered(grpc.GenericRpcHandler):
    """Reject the service's other procedures in words: clients of Triton have some for shared memory."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "MethodHandler | None":
        """Return what answers a call that no method of ours does; None where it is of another service."""
        service, _, name = handler_call_details.method.removeprefix("/").partition("/")
        if service != SERVICE:
            return None
        advice = (
            ": send the tensors in the request" if "SharedMemory" in name else f"; there are {listed(RPCS)}"
        )
        return rejecting(grpc.StatusCode.UNIMPLEMENTED, f"procedure {quoted(name)} is not offered{advice}")
