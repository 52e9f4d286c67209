"""Receives the messages of all calls: whole, and few slow ones at once.

gRPC keeps what has come of a message until all of it has, and does not say how much that is: at most the
largest message. So what bounds the memory of unfinished messages is how many of them are waited for. None
that comes within `PROMPT_SECONDS` is refused: in that time, the network bounds what can come.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from inspect import isasyncgen
from typing import Any, TypeAlias

import grpc

from polyhead_proto import RPCS
from polyhead_server.errors import ExpiredError, InvalidRequestError, RequestError, UnavailableError
from polyhead_server.observability.counter_layout import MEMORY
from polyhead_server.observability.statistics import Statistics
from polyhead_server.settings import Settings
from polyhead_server.transport.aborting import Context, abort

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

PROMPT_SECONDS = 1.0
"""A message that comes within this time is never refused for the time it takes."""

_STREAMS_PER_REQUEST = 4
"""A stream between two requests looks like one whose request does not go on, and is honest more often."""

_INFER = RPCS["ModelInfer"].path

_LOOK_SECONDS = 0.25
_RETRY_MS = (500, 1500)


class Waits:
    """Waits for messages, and for few of them long. Lives on the event loop.

    Args:
        what: What is waited for, as callers are told.
        most: How many may be waited for for longer than `PROMPT_SECONDS` at once: those that came first.
        seconds: The longest that any is waited for.
    """

    def __init__(self, what: str, *, most: int, seconds: float = math.inf) -> None:
        self._what = what
        self._most = most
        self._seconds = seconds
        # Since which look each task waits, the longest first; or why it does so no more. Looks are counted,
        # not seconds: after the event loop was held up, messages have come that nobody had time to see.
        self._tasks: dict[asyncio.Task[Any], int | RequestError] = {}
        self._excused: dict[asyncio.Task[Any], Callable[[], bool]] = {}
        self._looks = 0
        self._next_look: asyncio.TimerHandle | None = None

    async def read(self, context: Context, excused: Callable[[], bool] | None = None) -> Any:
        """Reads the next message of a call, or `grpc.aio.EOF`.

        Args:
            context: The call's.
            excused: Whether its caller waits for us, so that the time does not count.

        Raises:
            UnavailableError: It does not come promptly, and as many others do not either as may.
            ExpiredError: It has not come in time.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can wait")
        self._tasks[task] = self._looks
        if excused is not None:
            self._excused[task] = excused
        if self._next_look is None:  # one timer for all: one for each would cost more than the rest of this
            self._next_look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        try:
            return await context.read()
        except asyncio.CancelledError:
            why = self._tasks[task]
            if isinstance(why, int) or task.uncancel():
                raise
            raise why from None
        finally:
            del self._tasks[task]
            self._excused.pop(task, None)

    def _look(self) -> None:
        """Ends the waits that are too long, or too many."""
        loop = asyncio.get_running_loop()
        self._next_look = loop.call_later(_LOOK_SECONDS, self._look) if self._tasks else None
        self._looks += 1
        for task in [task for task, excused in self._excused.items() if excused()]:
            if isinstance(self._tasks[task], int):
                del self._tasks[task]
                self._tasks[task] = self._looks  # the last, as the others are in order
        slow = 0
        for task, since in self._tasks.items():
            if isinstance(since, RequestError):
                continue
            waited = (self._looks - since - 1) * _LOOK_SECONDS  # at least
            if waited < PROMPT_SECONDS:
                break
            if waited >= self._seconds:
                self._end(task, self._expired())
            elif slow == self._most:
                self._end(task, self._crowded())
            else:
                slow += 1

    def _end(self, task: asyncio.Task[Any], why: RequestError) -> None:
        self._tasks[task] = why
        task.cancel()

    def _expired(self) -> ExpiredError:
        return ExpiredError(f"{self._what} must come within {self._seconds:g} s, and did not")

    def _crowded(self) -> UnavailableError:
        return UnavailableError(
            f"{self._what} must come within {PROMPT_SECONDS:g} s while {self._most} others are waited for, "
            "and did not: try again later, send smaller requests, or close streams that are not used",
            retry_after_ms=random.randint(*_RETRY_MS),  # noqa: S311  # no secret
        )


class Requests:
    """The messages of a stream.

    Args:
        waits: Waits for them.
        context: The call's.
    """

    def __init__(self, waits: Waits, context: Context) -> None:
        self._waits = waits
        self._context = context
        self._at_work = 0

    def __aiter__(self) -> "Requests":
        return self

    async def __anext__(self) -> Any:
        """The next one. Who waits for an answer of ours is not late with it."""
        request = await self._waits.read(self._context, lambda: self._at_work > 0)
        if request is grpc.aio.EOF:
            raise StopAsyncIteration
        return request

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """One of them is worked on, for a block."""
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """It is not, for a block inside of that: its reader takes the answer."""
        self._at_work -= 1
        try:
            yield
        finally:
            self._at_work += 1


class Reception(grpc.aio.ServerInterceptor):
    """Makes every handler read its messages through `Waits`. Comes last of a server's interceptors.

    gRPC starts a unary handler when its message has come; ours start before, so that they see it come.

    Args:
        settings: The limits.
        statistics: Counts who is refused.
    """

    def __init__(self, settings: Settings, statistics: Statistics) -> None:
        most = max(1, settings.max_held_bytes // settings.max_request_bytes)
        self._requests = Waits("the request", most=most, seconds=settings.max_request_seconds)
        self._streams = Waits("the stream's next request", most=_STREAMS_PER_REQUEST * most)
        self._statistics = statistics
        self._handlers: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Called by gRPC for every call."""
        method: str = handler_call_details.method
        known = self._handlers.get(method)
        if known is None and (handler := await continuation(handler_call_details)) is not None:
            known = self._handlers[method] = self._receiving(method, handler)
        return known

    def _receiving(self, method: str, handler: Any) -> Handler:
        """The same handler, whose messages come through us."""
        serialisers = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary is not None:
            answer = handler.unary_unary

            async def unary(_: object, context: Context) -> Any:
                return await answer(await self._request(method, context), context)

            return grpc.stream_unary_rpc_method_handler(unary, *serialisers)

        async def stream(_: object, context: Context) -> None:
            if handler.unary_stream is not None:
                replies = handler.unary_stream(await self._request(method, context), context)
            else:
                replies = handler.stream_stream(Requests(self._streams, context), context)
            if not isasyncgen(replies):
                await replies
                return
            try:
                async with aclosing(replies):
                    async for reply in replies:
                        await context.write(reply)
            except RequestError as error:
                await abort(context, error)

        return grpc.stream_stream_rpc_method_handler(stream, *serialisers)

    async def _request(self, method: str, context: Context) -> Any:
        """The only message of a call."""
        began_ns = time.perf_counter_ns()
        try:
            request = await self._requests.read(context)
        except (RequestError, MemoryError) as error:  # its bytes may not fit into memory
            if method == _INFER:
                if isinstance(error, UnavailableError):
                    self._statistics.on_drop(MEMORY)
                self._statistics.failed(total_ns=time.perf_counter_ns() - began_ns, error=error)
            await abort(context, error)
        if request is grpc.aio.EOF:
            # Of those who are still there gRPC would answer none; those who have left are not counted.
            await abort(context, InvalidRequestError("a call must bring a request, this one ended without"))
        return request
