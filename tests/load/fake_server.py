"""A server whose service times are known: bare `grpc.aio`, in a process of its own, which can be stopped.

A model's name says what it does:

    identity       answers at once
    sleep-20       takes 20 ms
    known-20       takes 20 ms for every other request, and answers the others at once
    held-10-30     holds 10 requests until 30 others have been answered, and a while longer
    never          never answers
    parts          answers in two parts, and breaks off after the first for every other request
    busy           refuses every other request at once, and takes 20 ms for the others
    early          answers with an output that is too short for its shape
    rubbish        answers every other request with OK, and with something else

The first request is answered at once by all of them: it is the one that is sent to see whether the rest will
do. Replies carry what the server's own clock says of the service, as `compute_ns`.

Writes its port, and then `reached` when so many requests as the first argument says have come.
"""

import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from polyhead_proto import RPCS, SERVICE
from polyhead_proto import messages as pb

Context = grpc.aio.ServicerContext[Any, Any]

D_MODEL, LAYERS, MAX_TOKENS, VOCABULARY = 8, 2, 64, 100
ITEM_BYTES = {"FP32": 4, "FP16": 2, "UINT8": 1}
_A_WHILE = 1.0
_STEPS = 20


def tell(line: object) -> None:
    """To who has started this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def metadata_of(name: str) -> pb.ModelMetadataResponse:
    """An encoder of vectors, and its attention graph; `ids` takes ids and text, `ids-of-pairs` reranks."""
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
        outputs.append({"name": "lengths", "datatype": "INT32", "shape": [-1]})
    if name.startswith("ids-of-pairs"):
        inputs.append({"name": "text_pair", "datatype": "BYTES", "shape": [-1]})
        outputs.append({"name": "logits", "datatype": "FP32", "shape": [-1, 1]})
    inputs.append({"name": "lengths", "datatype": "INT32", "shape": [-1]})
    tensors = {
        f"attention.{layer}": {"role": "attention", "layer": layer} for layer in range(len(outputs) - 1)
    }
    family = name.partition(".")[0]
    properties: dict[str, object] = {
        "models": f"{family},{family}.attention",
        "tensors": json.dumps(tensors),
    }
    properties |= {"d_model": D_MODEL, "heads": 2, "layers": LAYERS, "max_tokens": MAX_TOKENS}
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

    async def serve(self, model: str, context: Context) -> None:
        """Takes the time that the model's name says."""
        self._received += 1
        number = self._received - 1
        if number == self._tell_at:
            tell("reached")
        if not number:
            return
        kind, *numbers = model.removesuffix(".attention").split("-")
        match kind, [int(one) for one in numbers if one.isdecimal()]:
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
                    self._releasing = asyncio.ensure_future(self._release_later())
            case "never", _:
                await asyncio.Event().wait()
            case "busy", _ if number % 2:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the queue is full")
            case "busy", _:
                await asyncio.sleep(0.02)

    async def _release_later(self) -> None:
        for _ in range(_STEPS):  # a moment in which the whole machine stands still is one of them
            await asyncio.sleep(_A_WHILE / _STEPS)
        self._release.set()

    async def infer(self, data: bytes, context: Context) -> bytes:
        """Answers with what was asked for, in zeros."""
        began = time.perf_counter_ns()
        request = pb.ModelInferRequest.FromString(data)
        await self.serve(request.model_name, context)
        reply = pb.ModelInferResponse(model_name=request.model_name, model_version="1")
        for output in request.outputs:
            add_output(reply, output, request.inputs[0].shape)
        spoil(request.model_name, self._received, reply)
        reply.parameters["compute_ns"].int64_param = time.perf_counter_ns() - began
        reply.parameters["queue_ns"].int64_param = 0
        return reply.SerializeToString()

    async def stream(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Answers in two parts."""
        async for data in requests:
            request = pb.ModelInferRequest.FromString(data)
            assert request.parameters["parts"].bool_param
            await self.serve(request.model_name, context)
            batch, tokens, width = request.inputs[0].shape
            half = tokens // 2
            for number, (start, count) in enumerate([(0, half), (half, tokens - half)]):
                if number and not self._received % 2:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "broken off")
                block = {"name": "output", "datatype": "FP32", "shape": [batch, count, width]}
                part = pb.ModelInferResponse(
                    model_name=request.model_name,
                    outputs=[block],
                    raw_output_contents=[bytes(4 * batch * count * width)],
                )
                part.outputs[0].parameters["whole"].string_param = f"{batch},{tokens},{width}"
                part.outputs[0].parameters["start"].string_param = f"0,{start},0"
                part.parameters["part"].int64_param = number
                part.parameters["triton_final_response"].bool_param = bool(number)
                if number:
                    part.parameters["compute_ns"].int64_param = 5
                yield pb.ModelStreamInferResponse(infer_response=part).SerializeToString()


def add_output(reply: pb.ModelInferResponse, output: Any, shape: Sequence[int]) -> None:
    """Adds a requested output."""
    batch, tokens = shape[:2]
    datatype = output.parameters["dtype"].string_param or "FP32"
    if output.name.startswith("attention"):
        shape = [batch, 2, tokens, tokens]
    reply.outputs.add(name=output.name, datatype=datatype, shape=shape)
    reply.raw_output_contents.append(bytes(ITEM_BYTES[datatype] * math.prod(shape)))


def spoil(model: str, received: int, reply: pb.ModelInferResponse) -> None:
    """Makes an answer what it must not be, where the model's name says so."""
    if model == "early":
        reply.raw_output_contents[0] = reply.raw_output_contents[0][1:]
    if model == "rubbish" and not received % 2:
        reply.raw_output_contents[0] = b"OK"


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
