"""`inference.GRPCInferenceService`: translates between gRPC and the runtime."""

from functools import partial
from typing import Any

import grpc

from polyhead_proto import RPCS, SERVICE
from polyhead_server.errors import listed, quoted
from polyhead_server.grpc.call import Call, MethodHandler, deadline_of, fail, read, rejecting, unary
from polyhead_server.grpc.stream import InferStream
from polyhead_server.observability.access_log import RequestLog
from polyhead_server.runtime import Runtime


def inference_handlers(runtime: Runtime, log: RequestLog) -> dict[str, MethodHandler]:
    """Return the handler of each of the service's methods, by its name.

    Args:
        runtime: Answers requests.
        log: Records every inference.
    """

    async def infer(_requests: object, call: Call) -> bytes:
        deadline = deadline_of(call)
        try:
            payload = await read(call)
        except Exception as error:
            runtime.registry.unattributed.failed(total_ns=0, error=error)
            await fail(call, error)
        with log.request(call):
            try:
                until_sent: Any = call.add_done_callback
                return await runtime.infer(payload, deadline=deadline, until_sent=until_sent)
            except Exception as error:
                await fail(call, error)

    async def stream_infer(_requests: object, call: Call) -> None:
        await InferStream(runtime, log, call).run()

    return {
        **{name: unary(partial(runtime.call, name)) for name in RPCS},
        "ModelInfer": grpc.stream_unary_rpc_method_handler(infer),  # as `unary` has it
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stream_infer),
    }


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
