"""A server whose service times are known: bare `grpc.aio`, in a process of its own, which can be stopped.

A model's name says what it does:

    identity       answers at once
    sleep-20       takes 20 ms
    known-20       takes 20 ms for every other request, and answers the others at once
    held-10-30     holds 10 requests until 30 others have been answered, and a while longer
    never          never answers
    parts          answers in two parts, and breaks off after the first for every other request

The first request is answered at once by all of them: it is the one that is sent to see whether the rest will
do. Replies carry what the server's own clock says of the service, as `compute_ns`.

Writes its port, and then `reached` when so many requests as the first argument says have come.
"""

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from polyhead_proto import RPCS, SERVICE
from polyhead_proto import messages as pb

Context = grpc.aio.ServicerContext[Any, Any]

D_MODEL, LAYERS, MAX_TOKENS, VOCABULARY = 8, 2, 64, 100
_A_WHILE = 0.2


def tell(line: object) -> None:
    """To who has started this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def metadata_of(name: str) -> pb.ModelMetadataResponse:
    """An encoder of vectors, and its attention graph; `ids` takes token ids and text."""
    outputs = [{"name": "output", "datatype": "FP32", "shape": [-1, -1, D_MODEL]}]
    if name.endswith(".attention"):
        outputs += [
            {"name": f"attention.{layer}", "datatype": "FP32", "shape": [-1, 2, -1, -1]}
            for layer in range(LAYERS)
        ]
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, -1, D_MODEL]}]
    if name.startswith("ids"):
        inputs = [
            {"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]},
            {"name": "text", "datatype": "BYTES", "shape": [-1]},
        ]
        outputs.append({"name": "tokens", "datatype": "BYTES", "shape": [-1, -1]})
    inputs.append({"name": "lengths", "datatype": "INT32", "shape": [-1]})
    properties = {"d_model": D_MODEL, "heads": 2, "layers": LAYERS, "max_tokens": MAX_TOKENS}
    if name.startswith("ids"):
        properties["vocabulary"] = VOCABULARY
    if name.startswith("parts"):
        properties |= {"max_reply_bytes": 100, "max_stream_reply_bytes": 10**9}
    return pb.ModelMetadataResponse(
        name=name,
        versions=["1"],
        platform="fake",
        inputs=inputs,
        outputs=outputs,
        properties={key: str(value) for key, value in properties.items()},
    )


class Fake:
    """Answers."""

    def __init__(self, tell_at: int) -> None:
        self._tell_at = tell_at
        self._received = self._answered = 0
        self._release = asyncio.Event()

    async def serve(self, model: str) -> None:
        """Takes the time that the model's name says."""
        self._received += 1
        number = self._received - 1
        if number == self._tell_at:
            tell("reached")
        if not number:
            return
        kind, *numbers = model.split("-")
        match kind, [int(one) for one in numbers]:
            case "sleep", [milliseconds]:
                await asyncio.sleep(milliseconds / 1000)
            case "known", [milliseconds] if number % 2:
                await asyncio.sleep(milliseconds / 1000)
            case "held", [first, others]:
                if number <= first:
                    await self._release.wait()
                    return
                self._answered += 1
                if self._answered == others:
                    asyncio.get_running_loop().call_later(_A_WHILE, self._release.set)
            case "never", _:
                await asyncio.Event().wait()

    async def infer(self, data: bytes, context: Context) -> bytes:
        """Answers with one small tensor."""
        began = time.perf_counter_ns()
        request = pb.ModelInferRequest.FromString(data)
        await self.serve(request.model_name)
        shape = list(request.inputs[0].shape)
        reply = pb.ModelInferResponse(
            model_name=request.model_name,
            model_version="1",
            outputs=[{"name": "output", "datatype": "FP32", "shape": shape}],
            raw_output_contents=[bytes(4 * math.prod(shape))],
        )
        reply.parameters["compute_ns"].int64_param = time.perf_counter_ns() - began
        reply.parameters["queue_ns"].int64_param = 0
        return reply.SerializeToString()

    async def stream(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Answers in two parts."""
        async for data in requests:
            request = pb.ModelInferRequest.FromString(data)
            assert request.parameters["parts"].bool_param
            await self.serve(request.model_name)
            for last in (False, True):
                if last and not self._received % 2:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "broken off")
                part = pb.ModelInferResponse(model_name=request.model_name, raw_output_contents=[bytes(500)])
                if last:
                    part.parameters["compute_ns"].int64_param = 5
                yield pb.ModelStreamInferResponse(infer_response=part).SerializeToString()


async def model_metadata(data: bytes, context: Context) -> bytes:
    """Every model is there, but `absent`."""
    name = pb.ModelMetadataRequest.FromString(data).name
    if name == "absent":
        await context.abort(grpc.StatusCode.NOT_FOUND, "there is no model absent")
    return metadata_of(name).SerializeToString()


async def repository_index(data: bytes, context: Context) -> bytes:
    """One family."""
    model = pb.RepositoryIndexResponse.ModelIndex(name="identity", version="1", state="READY")
    return pb.RepositoryIndexResponse(models=[model]).SerializeToString()


async def main(tell_at: int) -> None:
    """Serves until it is killed."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    fake = Fake(tell_at)
    handlers = {
        "ModelInfer": fake.infer,
        "ModelMetadata": model_metadata,
        "RepositoryIndex": repository_index,
    }
    procedures: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(call) for name, call in handlers.items()
    }
    procedures["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(fake.stream)
    assert set(procedures) <= set(RPCS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, procedures),))
    tell(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
