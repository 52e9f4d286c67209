"""`ModelStreamInfer`: several requests of a stream are worked on at once, and answered in their order.

A request that fails does not end the stream: its reply holds the error. At most `MAX_IN_PROGRESS` requests
have been read and not answered, so that a slow reader holds up its own stream only.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TypeAlias

from polyhead_proto import messages as pb
from polyhead_proto.names import FINAL, WANTS_STATUS
from polyhead_server.errors import DrainingError, ErrorReply, InvalidRequestError
from polyhead_server.inference.wire import split_infer
from polyhead_server.observability.request_log import RequestLog
from polyhead_server.runtime import Runtime
from polyhead_server.transport.call import StreamContext, abort, caller_deadline, logged_reply
from polyhead_server.transport.reading import MAX_IN_PROGRESS, StreamRequests

Task: TypeAlias = asyncio.Task[None]

# Late work is rejected wherever it waits. Only a reader that stands still has to be cut off, and that later.
_GRACE_SECONDS = 1.0


class ReplySlot:
    """The place of a reply in its stream: after the reply before it.

    Args:
        before: The task that writes the reply before; None for the first.
    """

    def __init__(self, before: Task | None) -> None:
        self._before = before

    async def wait(self) -> None:
        """Wait until the reply may be written.

        Raises:
            CancelledError: The task before has ended the stream.
        """
        before = self._before
        if before is None:
            return
        if not before.done():
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            before.add_done_callback(lambda _: None if done.done() else done.set_result(None))
            await done
        if _has_failed(before):
            raise asyncio.CancelledError
        self._before = None


class InferStream:
    """Answer the requests of one call.

    Args:
        runtime: Answers a request.
        observation: Records every inference.
        requests: The call's requests.
        context: The call.
    """

    def __init__(
        self, runtime: Runtime, observation: RequestLog, requests: StreamRequests, context: StreamContext
    ) -> None:
        self._runtime = runtime
        self._observed: Callable[[StreamContext], AbstractContextManager[object]] = (
            observation.request if observation.wanted else nullcontext
        )
        self._requests = requests
        self._context = context
        self._deadline = caller_deadline(context)
        self._loop = asyncio.get_running_loop()
        self._tasks: deque[tuple[Task, float]] = deque()
        """Each with the time at which it is cut off; later ones not before."""
        self._timer: asyncio.TimerHandle | None = None
        self._last: Task | None = None
        self._failed: asyncio.Future[Task] = self._loop.create_future()
        """Done when the stream cannot go on."""

    async def run(self) -> None:
        """Answer requests until the caller sends no more.

        Raises:
            DrainingError: The server drains. Every request accepted before is answered.
        """
        reading = asyncio.ensure_future(self._read())
        draining = asyncio.ensure_future(self._runtime.lifecycle.draining.wait())
        try:
            # Wait once for all requests, not for each: that would cost more than to read one.
            await asyncio.wait((reading, draining, self._failed), return_when=asyncio.FIRST_COMPLETED)
            self._check()
            if all_read := reading.done():
                reading.result()
            reading.cancel()
            if self._last is not None:
                await self._wait_for(self._last)
            if not all_read:
                raise DrainingError
        finally:
            if self._timer is not None:
                self._timer.cancel()
            unfinished = (reading, draining, *(task for task, _ in self._tasks))
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    async def _read(self) -> None:
        """Begin to answer one request after the other."""
        async for payload in self._requests:
            deadline = self._runtime.deadline(self._deadline)
            task = self._loop.create_task(self._answer(payload, deadline, ReplySlot(self._last)))
            del payload  # it belongs to the task: the next request may be long in coming
            task.add_done_callback(self._ended)
            self._last = task
            self._tasks.append((task, deadline + _GRACE_SECONDS))
            if self._timer is None:
                self._cut_off()
            while self._tasks and self._tasks[0][0].done():
                self._tasks.popleft()
            if len(self._tasks) >= MAX_IN_PROGRESS:
                await self._wait_for(self._tasks[0][0])

    def _cut_off(self) -> None:
        """Cancel the tasks that are long overdue, and come back for the next: one timer for all."""
        self._timer = None
        for task, time in self._tasks:
            if not task.done() and self._loop.time() < time:
                self._timer = self._loop.call_at(time, self._cut_off)
                return
            task.cancel()

    def _ended(self, task: Task) -> None:
        if _has_failed(task) and not self._failed.done():
            self._failed.set_result(task)
        self._requests.answered()

    def _check(self) -> None:
        """Raise the error that ends the stream, if there is one."""
        if self._failed.done():
            self._failed.result().result()

    async def _wait_for(self, task: Task) -> None:
        await asyncio.wait((task, self._failed), return_when=asyncio.FIRST_COMPLETED)
        self._check()

    async def _answer(self, payload: bytes, deadline: float, slot: ReplySlot) -> None:
        """Answer one request. An exception ends the stream, after the replies before it."""
        with self._observed(self._context):
            self._requests.in_progress += 1
            try:
                await self._runtime.stream(payload, partial(self._write, slot), deadline=deadline)
            except Exception as error:
                if isinstance(error, DrainingError) or self._wants_status():
                    await slot.wait()
                    await abort(self._context, error)  # in this task, where the request's record is
                await self._write(slot, failed_reply(logged_reply(self._context, error), payload))
            finally:
                self._requests.in_progress -= 1

    def _wants_status(self) -> bool:
        """Return whether an error is to end the stream with a status, as Triton's clients may ask."""
        return WANTS_STATUS in (self._context.invocation_metadata() or ())

    async def _write(self, slot: ReplySlot, reply: bytes) -> None:
        self._requests.in_progress -= 1  # it waits for its reader now
        try:
            await slot.wait()
            await self._context.write(reply)
        finally:
            self._requests.in_progress += 1


def _has_failed(task: Task) -> bool:
    return task.cancelled() or task.exception() is not None


def failed_reply(error: ErrorReply, payload: bytes) -> bytes:
    """Write the reply that holds a request's error, with the request's id."""
    request_id = ""
    with suppress(InvalidRequestError):
        request_id = split_infer(payload).request_id
    return pb.ModelStreamInferResponse(
        error_message=f"{error.code.name}: {error.message}",
        infer_response=pb.ModelInferResponse(
            id=request_id, parameters={FINAL: pb.InferParameter(bool_param=True)}
        ),
    ).SerializeToString()
