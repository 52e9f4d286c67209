"""Call a runtime that lives on another thread's event loop.

Calls that come together are handed over together, and so are their replies: to wake a thread costs both of
them, and requests that arrive together can be computed in one batch.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import Message

from polyhead_proto import RPCS
from polyhead_server.errors import DrainingError, ExpiredError
from polyhead_server.inference.reply import InferReply
from polyhead_server.inference.wire import InferRequest
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.statistics import Drop
from polyhead_server.runtime import Runtime
from polyhead_server.serving.budget import Reservation

_MOST_AT_ONCE = 32
"""Calls for which the first of them waits at most: others may come in every turn of a busy event loop."""

T = TypeVar("T")


class ThreadsafeRuntime:
    """Call a runtime from the event loop of another thread. Leaving a call cancels it.

    Args:
        runtime: Answers requests.
        loop: The event loop that it lives on.
    """

    def __init__(self, runtime: Runtime, loop: asyncio.AbstractEventLoop) -> None:
        self.registry = runtime.registry
        self.serving = runtime.serving
        self.settings = runtime.settings
        self._runtime = runtime
        self._budget = runtime.budget
        self._loop = loop
        self._there = _HandOver(loop)
        self._back: _HandOver | None = None

    async def call(self, procedure: str, request: Message) -> Any:
        """Return the response of a procedure other than inference.

        Raises:
            RequestError: The caller gets the reason.
        """
        response = await self._run(self._runtime.call(procedure, request.SerializeToString()))
        return RPCS[procedure].response.FromString(response)

    async def infer(
        self,
        request: InferRequest,
        keep: Callable[[InferReply], T],
        *,
        deadline: float,
        held: Reservation,
        most_bytes: int | None = None,
        work_bytes: int = 0,
    ) -> T:
        """Return what is kept of the reply to an inference request; see `Runtime.answer`.

        Args:
            request: The request.
            keep: Returns what is kept of the reply.
            deadline: When the caller stops waiting, by `time.monotonic`, as all event loops count.
            held: Has the request's bytes, and takes what is computed and replied.
            most_bytes: The most bytes of the reply; None: those of a message.
            work_bytes: What `keep` costs beyond copying the reply, in bytes to copy.

        Raises:
            RequestError: The caller gets the reason.
            EngineError: The engine failed.
        """
        work = self._answer(
            request, keep, deadline=deadline, held=held, most_bytes=most_bytes, work_bytes=work_bytes
        )
        return await self._run(work)

    def reserve(self) -> Reservation:
        """Return the reservation of a request that is about to arrive. The end of its block releases it."""
        return self._budget.begin(self)

    def on_drop(self, reason: Drop) -> None:
        """Count a request that finds no room."""
        self.soon(partial(self.registry.unattributed.on_drop, reason))

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function on the runtime's event loop, unless that has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    async def _answer(
        self,
        request: InferRequest,
        keep: Callable[[InferReply], T],
        *,
        deadline: float,
        held: Reservation,
        most_bytes: int | None,
        work_bytes: int,
    ) -> T:
        """Answer on the runtime's event loop, whose clock decides whether the deadline has passed."""
        deadline = self._runtime.deadline(deadline)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._runtime.answer(
                    request, keep, deadline=deadline, held=held, most_bytes=most_bytes, work_bytes=work_bytes
                )
        except TimeoutError:
            raise ExpiredError(
                "the deadline passed before there was an answer: give the call more time"
            ) from None

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work on the runtime's event loop."""
        loop = asyncio.get_running_loop()
        if self._back is None:
            self._back = _HandOver(loop)
        call = _Call(work, loop.create_future(), self._back)
        self._there.put(call.begin)
        try:
            return await call.reply  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            self.soon(call.leave)
            raise


class _Call:
    """A call on its way: to the runtime's event loop, and back.

    | it is             | event             | event loop | then
    | ----------------- | ----------------- | ---------- | -----------------------------------------
    | on its way there  | it arrives        | runtime's  | a task does the work
    | on its way there  | the caller leaves | caller's   | dropped when it arrives
    | worked on         | the task ends     | runtime's  | on its way back
    | worked on         | the caller leaves | runtime's  | the task is cancelled
    | on its way back   | it arrives        | caller's   | the caller has the reply
    | on its way back   | the caller leaves | caller's   | dropped when it arrives

    Args:
        work: Answers it.
        reply: What the caller waits for.
        back: Takes it back when it is answered.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], reply: asyncio.Future[Any], back: "_HandOver") -> None:
        self.reply = reply
        self._work = work
        self._back = back
        self._context = copy_context()
        self._task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Begin to answer, on the runtime's event loop."""
        if self.reply.cancelled():
            self._work.close()
            return
        self._task = asyncio.get_running_loop().create_task(self._work, context=self._context)
        self._task.add_done_callback(lambda task: self._back.put(partial(self._deliver, task)))

    def leave(self) -> None:
        """Answer no longer, on the runtime's event loop: the caller has left."""
        if self._task is not None:
            self._task.cancel()

    def _deliver(self, task: asyncio.Task[Any]) -> None:
        """Give the caller the reply, on its event loop."""
        error = DrainingError() if task.cancelled() else task.exception()
        if self.reply.done():
            return
        if error is None:
            self.reply.set_result(task.result())
        else:
            self.reply.set_exception(error)


class _HandOver:
    """Call functions on another thread's event loop, those of one moment together.

    Args:
        to: That event loop.
    """

    def __init__(self, to: asyncio.AbstractEventLoop) -> None:
        self._to = to
        self._waiting: list[Callable[[], None]] = []

    def put(self, function: Callable[[], None]) -> None:
        """Have a function called as soon as a turn of this event loop brings no other."""
        self._waiting.append(function)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._pass_on, 1)

    def _pass_on(self, seen: int) -> None:
        """Pass on what waits, or come back in the next turn if there is more than there was in the last."""
        if seen < len(self._waiting) < _MOST_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._pass_on, len(self._waiting))
            return
        functions, self._waiting = self._waiting, []
        with suppress(RuntimeError):  # it has ended, and so does this one: see `serve_http`
            self._to.call_soon_threadsafe(_call_all, functions)


def _call_all(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        try:
            function()
        except Exception:
            LOGGER.exception("HTTP: a call failed")
