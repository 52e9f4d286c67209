"""`ModelStreamInfer`: requests of a stream are answered in their order, and several are worked on at once.

A request that fails does not end the stream: its answer holds the error. At most `MOST` requests have been
read and not answered, so that a slow reader holds up its own stream.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeAlias

import grpc

from polyhead_proto import messages as pb
from polyhead_proto.names import FINAL, WANTS_STATUS
from polyhead_server.errors import ErrorReply, InvalidRequestError
from polyhead_server.inference.inference import Inference
from polyhead_server.inference.wire import split_infer
from polyhead_server.serving.budget import Reservation
from polyhead_server.serving.lifecycle import Lifecycle

Context = grpc.aio.ServicerContext[Any, Any]
Task: TypeAlias = asyncio.Task[None]

MOST = 32
"""Requests of one stream that are worked on at once."""


class Turn:
    """When an answer may be written: after the one before it.

    Args:
        before: What writes that one; None for the first.
    """

    def __init__(self, before: Task | None) -> None:
        self._before = before

    async def come(self) -> None:
        """Returns once it has come.

        Raises:
            CancelledError: The one before has ended the stream; it never comes.
        """
        before = self._before
        if before is None:
            return
        if not before.done():
            came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            before.add_done_callback(partial(_wake, came))
            await came
        if _ended_badly(before):
            raise asyncio.CancelledError
        self._before = None


def _ended_badly(task: Task) -> bool:
    return task.cancelled() or task.exception() is not None


def _wake(waiter: "asyncio.Future[None]", _before: Task) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Pipeline:
    """The requests of a stream that have been read and are not answered yet.

    Args:
        answer: Answers one request in its turn. What it raises ends the stream.
    """

    def __init__(self, answer: Callable[[bytes, Turn], Coroutine[Any, Any, None]]) -> None:
        self._answer = answer
        self._tasks: deque[Task] = deque()
        self._last: Task | None = None
        self.failed: asyncio.Future[Task] = asyncio.get_running_loop().create_future()
        """Done when the stream cannot go on."""

    def begin(self, payload: bytes) -> None:
        """Begins to answer a request."""
        self._last = asyncio.get_running_loop().create_task(self._answer(payload, Turn(self._last)))
        self._last.add_done_callback(self._ended)
        self._tasks.append(self._last)

    def check(self) -> None:
        """Raises what ends the stream."""
        if self.failed.done():
            self.failed.result().result()

    async def room(self) -> None:
        """Waits until another request may be read."""
        while self._tasks and self._tasks[0].done():
            self._tasks.popleft()
        if len(self._tasks) >= MOST:
            await self._wait_for(self._tasks[0])

    async def finish(self) -> None:
        """Waits until every answer is written."""
        if self._last is not None:
            await self._wait_for(self._last)

    async def close(self) -> None:
        """Drops what is not answered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait_for(self, task: Task) -> None:
        await asyncio.wait((task, self.failed), return_when=asyncio.FIRST_COMPLETED)
        self.check()

    def _ended(self, task: Task) -> None:
        if _ended_badly(task) and not self.failed.done():
            self.failed.set_result(task)


async def answer_stream(
    requests: AsyncIterator[bytes],
    lifecycle: Lifecycle,
    answer: Callable[[bytes, Turn], Coroutine[Any, Any, None]],
) -> None:
    """Answers the requests of a stream until it ends, and returns when all answers are written.

    Args:
        requests: They are asked for one by one, and not while `MOST` are worked on.
        lifecycle: Says when the server drains.
        answer: Answers one request in its turn. What it raises ends the stream.

    Raises:
        UnavailableError: The server drains. Everything that was begun before has its answer.
    """
    pipeline = Pipeline(answer)
    reading = asyncio.ensure_future(_begin_all(requests, pipeline))
    draining = asyncio.ensure_future(lifecycle.draining.wait())
    try:
        # Waited for once, not for every request: that costs more than reading one.
        await asyncio.wait((reading, draining, pipeline.failed), return_when=asyncio.FIRST_COMPLETED)
        pipeline.check()
        all_read = reading.done()
        if all_read:
            reading.result()
        else:
            reading.cancel()
        await pipeline.finish()
        if not all_read:
            raise lifecycle.refuse()
    finally:
        reading.cancel()
        draining.cancel()
        await pipeline.close()
        await asyncio.gather(reading, draining, return_exceptions=True)


async def _begin_all(requests: AsyncIterator[bytes], pipeline: Pipeline) -> None:
    """Begins to answer one request after the other, until the caller has no more."""
    async for payload in requests:
        pipeline.begin(payload)
        del payload  # the pipeline's alone: the next one may be long in coming
        await pipeline.room()


async def answer_in_stream(
    inference: Inference,
    payload: bytes,
    deadline: float,
    held: Reservation,
    write: Callable[[bytes], Awaitable[None]],
) -> None:
    """Writes the answer to one request, which may have several parts; what goes wrong is raised.

    A part is made when the one before has been taken: `write` returns when gRPC's flow control lets it.
    """
    async with aclosing(inference.stream(payload, deadline, held)) as replies:
        async for message in replies:
            await write(message)
            del message  # memory for one part at a time


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
    return WANTS_STATUS in (context.invocation_metadata() or ())


def refuse_in_stream(refusal: ErrorReply, payload: bytes) -> bytes:
    """One request's error, with its id so that the caller knows which it was."""
    request_id = ""
    with suppress(InvalidRequestError):
        request_id = split_infer(payload).request_id
    return pb.ModelStreamInferResponse(
        error_message=f"{refusal.code.name}: {refusal.message}",
        infer_response=pb.ModelInferResponse(
            id=request_id, parameters={FINAL: pb.InferParameter(bool_param=True)}
        ),
    ).SerializeToString()
