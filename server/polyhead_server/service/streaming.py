"""`ModelStreamInfer`: requests of a stream are answered one after the other, in their order.

A request that fails does not end the stream: its answer holds the error. The next request is read when the
last answer is written, so that a slow reader holds up its own stream and takes no more memory.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import grpc

from polyhead_proto import messages as pb
from polyhead_server.errors import InvalidRequestError, Refusal
from polyhead_server.lifecycle import Lifecycle
from polyhead_server.service.inference import Inference
from polyhead_server.service.reply import frame_stream
from polyhead_server.service.wire import split_infer

Context = grpc.aio.ServicerContext[Any, Any]


async def requests_until_draining(context: Context, lifecycle: Lifecycle) -> AsyncIterator[bytes]:
    """The requests of a stream, until it ends.

    Raises:
        UnavailableError: The server drains while it waits for the next one.
    """
    draining = asyncio.ensure_future(lifecycle.draining.wait())
    try:
        while True:
            reading = asyncio.ensure_future(context.read())
            await asyncio.wait((reading, draining), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading
                raise lifecycle.refuse()
            payload = reading.result()
            if payload is grpc.aio.EOF:
                return
            yield payload
    finally:
        draining.cancel()


async def answer_in_stream(
    inference: Inference, payload: bytes, deadline: float | None, write: Callable[[bytes], Awaitable[None]]
) -> None:
    """Writes the answer to one request, which may have several parts; what goes wrong is raised.

    A part is made when the one before has been taken: `write` returns when gRPC's flow control lets it.
    """
    async with aclosing(inference.stream(payload, deadline)) as replies:
        async for pieces in replies:
            message = await inference.join(frame_stream(pieces))
            del pieces  # memory for one part at a time
            await write(message)
            del message


async def send(context: Context, message: bytes) -> None:
    """Sends a message of a stream.

    Raises:
        CancelledError: The caller has left; of that, a failed write may tell before gRPC does.
    """
    try:
        await context.write(message)
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError from error


def wants_status(context: Context) -> bool:
    """The caller wants an error as the stream's status, as Triton's clients say it, not in a message."""
    return ("triton_grpc_error", "true") in (context.invocation_metadata() or ())


def refuse_in_stream(refusal: Refusal, payload: bytes) -> bytes:
    """One request's error, with its id so that the caller knows which it was."""
    request_id = ""
    with suppress(InvalidRequestError):
        if (request := split_infer(payload)) is not None:
            request_id = request.request_id
    return pb.ModelStreamInferResponse(
        error_message=f"{refusal.code.name}: {refusal.message}",
        infer_response=pb.ModelInferResponse(
            id=request_id, parameters={"triton_final_response": pb.InferParameter(bool_param=True)}
        ),
    ).SerializeToString()
