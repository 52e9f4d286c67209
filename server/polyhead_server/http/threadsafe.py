"""Call a runtime that lives on another thread's event loop.

Calls that come together are handed over together, and so are their replies: to wake a thread costs both of
them, and requests that arrive together can be computed in one batch.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import Message

from polyhead_proto import RPCS
from polyhead_server.errors import DrainingError, ExpiredError
from polyhead_server.inference.reply import InferReply
from polyhead_server.inference.wire import InferRequest
from polyhead_server.observability.logs import LOGGER
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
        self._calls = _HandOver(loop, take=_Call.begin, lost=_Call.drain)
        self._replies: _HandOver | None = None

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
    ) -> T:
        """Return what is kept of the reply to an inference request; see `Runtime.answer`.

        Args:
            request: The request.
            keep: Returns what is kept of the reply.
            deadline: When the caller stops waiting, by `time.monotonic`, as all event loops count.
            held: Has the request's bytes, and takes what is computed and replied.
            most_bytes: The most bytes of the reply; None: those of a message.

        Raises:
            RequestError: The caller gets the reason.
            EngineError: The engine failed.
        """
        return await self._run(self._answer(request, keep, deadline, held, most_bytes))

    def reserve(self) -> Reservation:
        """Return the reservation of a request that is about to arrive. The end of its block releases it."""
        return self._budget.begin(self)

    def on_drop(self, reason: str) -> None:
        """Count a request that finds no room."""
        self.soon(partial(self.registry.unattributed.on_drop, reason))

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function on the runtime's event loop, unless that has ended."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return

    async def _answer(
        self,
        request: InferRequest,
        keep: Callable[[InferReply], T],
        deadline: float,
        held: Reservation,
        most_bytes: int | None,
    ) -> T:
        """Answer on the runtime's event loop, whose clock decides whether the deadline has passed."""
        deadline = self._runtime.deadline(deadline)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._runtime.answer(
                    request, keep, deadline=deadline, held=held, most_bytes=most_bytes
                )
        except TimeoutError:
            raise ExpiredError(
                "the deadline passed before there was an answer: give the call more time"
            ) from None

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        loop = asyncio.get_running_loop()
        if self._replies is None:
            self._replies = _HandOver(loop, take=_Call.deliver)
        call = _Call(work, loop.create_future(), self._replies)
        self._calls.put(call)
        try:
            return await call.reply  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            self.soon(call.leave)
            raise


class _Call:
    """A call on its way: to the runtime's event loop, and back.

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
        self._left = False

    # ---- On the runtime's event loop ---------------------------------------------------------------

    def begin(self) -> None:
        """Begin to answer."""
        if self._left:
            self._work.close()
            return
        self._task = asyncio.get_running_loop().create_task(self._work, context=self._context)
        self._task.add_done_callback(lambda _: self._back.put(self))

    def leave(self) -> None:
        """Answer no longer: the caller has left."""
        self._left = True
        if self._task is not None:
            self._task.cancel()

    # ---- On the caller's event loop ----------------------------------------------------------------

    def deliver(self) -> None:
        """Give the caller the reply."""
        task = self._task
        assert task is not None  # noqa: S101 - it has ended
        error = DrainingError() if task.cancelled() else task.exception()
        if self.reply.done():  # the caller has left
            return
        if error is None:
            self.reply.set_result(task.result())
        else:
            self.reply.set_exception(error)

    def drain(self) -> None:
        """Tell the caller that the runtime's event loop has ended."""
        self._work.close()
        if not self.reply.done():
            self.reply.set_exception(DrainingError())


class _HandOver:
    """Hand calls over to another thread's event loop.

    Args:
        to: That event loop.
        take: What it does with each.
        lost: What to do with each, here, if that event loop is closed.
    """

    def __init__(
        self,
        to: asyncio.AbstractEventLoop,
        *,
        take: Callable[[_Call], None],
        lost: Callable[[_Call], None] | None = None,
    ) -> None:
        self._to = to
        self._take = take
        self._lost = lost
        self._waiting: list[_Call] = []

    def put(self, call: _Call) -> None:
        """Hand a call over as soon as a turn of this event loop brings no other."""
        self._waiting.append(call)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._pass_on, 1)

    def _pass_on(self, seen: int) -> None:
        if seen < len(self._waiting) < _MOST_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._pass_on, len(self._waiting))
            return
        calls, self._waiting = self._waiting, []
        try:
            self._to.call_soon_threadsafe(self._take_all, calls)
        except RuntimeError:  # it is closed
            if self._lost is not None:
                for call in calls:
                    self._lost(call)

    def _take_all(self, calls: list[_Call]) -> None:
        for call in calls:
            try:
                self._take(call)
            except Exception:
                LOGGER.exception("HTTP: a call failed")
