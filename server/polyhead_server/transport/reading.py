"""Read the messages of all calls, with a bound on how many unfinished ones are waited for.

gRPC keeps what has come of a message until all of it has, and does not say how much that is: at most the
largest message. So the number of unfinished messages that are waited for bounds their memory. None that comes
within `PROMPT_SECONDS` is rejected: within that time, the network bounds how much can come.
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
from polyhead_server.transport.call import Context, abort

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

PROMPT_SECONDS = 1.0
"""A message that comes within this time is never rejected for the time it takes."""

_STREAMS_PER_REQUEST = 4
"""A stream between two requests looks like one whose request is stuck, and is honest more often."""

_INFER = RPCS["ModelInfer"].path

_CHECK_SECONDS = 0.25
_RETRY_MS = (500, 1500)


class BoundedReader:
    """Read messages, and wait long only for a few of them. Lives on the event loop.

    Args:
        what: What is read, for error messages.
        limit: How many may take longer than `PROMPT_SECONDS` at once. The first ones to wait may.
        seconds: The longest that any may take.
    """

    def __init__(self, what: str, *, limit: int, seconds: float = math.inf) -> None:
        self._what = what
        self._limit = limit
        self._seconds = seconds
        # For each waiting task the check since which it waits, the longest first; or why it has been ended.
        # Checks are counted, not seconds: if the event loop was held up, messages have come meanwhile that
        # it had no time to see.
        self._tasks: dict[asyncio.Task[Any], int | RequestError] = {}
        self._excused: dict[asyncio.Task[Any], Callable[[], bool]] = {}
        self._checks = 0
        self._next_check: asyncio.TimerHandle | None = None

    async def read(self, context: Context, excused: Callable[[], bool] | None = None) -> Any:
        """Read the next message of a call, or `grpc.aio.EOF`.

        Args:
            context: The call.
            excused: Returns whether the caller is waiting for the server, so that the time does not count.

        Raises:
            UnavailableError: The message is not prompt, and as many others as may be are not either.
            ExpiredError: The message has not come in time.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - gRPC calls handlers in tasks
        self._tasks[task] = self._checks
        if excused is not None:
            self._excused[task] = excused
        if self._next_check is None:  # one timer for all: one for each would cost more than the rest of this
            self._next_check = asyncio.get_running_loop().call_later(_CHECK_SECONDS, self._check)
        try:
            return await context.read()
        except asyncio.CancelledError:
            reason = self._tasks[task]
            if isinstance(reason, int) or task.uncancel():
                raise
            raise reason from None
        finally:
            del self._tasks[task]
            self._excused.pop(task, None)

    def _check(self) -> None:
        """End the reads that take too long, or are too many."""
        loop = asyncio.get_running_loop()
        self._next_check = loop.call_later(_CHECK_SECONDS, self._check) if self._tasks else None
        self._checks += 1
        for task in [task for task, excused in self._excused.items() if excused()]:
            if isinstance(self._tasks[task], int):
                del self._tasks[task]
                self._tasks[task] = self._checks  # at the end, since the others are in order
        slow = 0
        for task, since in self._tasks.items():
            if isinstance(since, RequestError):
                continue
            waited = (self._checks - since - 1) * _CHECK_SECONDS  # at least
            if waited < PROMPT_SECONDS:
                break
            if waited >= self._seconds:
                self._end(task, self._expired())
            elif slow == self._limit:
                self._end(task, self._crowded())
            else:
                slow += 1

    def _end(self, task: asyncio.Task[Any], reason: RequestError) -> None:
        self._tasks[task] = reason
        task.cancel()

    def _expired(self) -> ExpiredError:
        return ExpiredError(f"{self._what} must come within {self._seconds:g} s, and did not")

    def _crowded(self) -> UnavailableError:
        return UnavailableError(
            f"{self._what} must come within {PROMPT_SECONDS:g} s while {self._limit} others are waited for, "
            "and did not: try again later, send smaller requests, or close streams that are not used",
            retry_after_ms=random.randint(*_RETRY_MS),  # noqa: S311  # no secret
        )


class StreamRequests:
    """Iterate over the requests of a stream.

    Args:
        reader: Reads them.
        context: The call.
    """

    def __init__(self, reader: BoundedReader, context: Context) -> None:
        self._reader = reader
        self._context = context
        self._in_progress = 0

    def __aiter__(self) -> "StreamRequests":
        return self

    async def __anext__(self) -> Any:
        """Read the next request. A caller that waits for our answer is not late with it."""
        request = await self._reader.read(self._context, lambda: self._in_progress > 0)
        if request is grpc.aio.EOF:
            raise StopAsyncIteration
        return request

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark one request as worked on for the duration of the block."""
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Mark it as waiting for its caller instead, inside a `working` block."""
        self._in_progress -= 1
        try:
            yield
        finally:
            self._in_progress += 1


class ReadingInterceptor(grpc.aio.ServerInterceptor):
    """Make every handler read through a `BoundedReader`. Must be the last of a server's interceptors.

    gRPC starts a unary handler when its message has come. These start before, so that they can watch it come.

    Args:
        settings: The limits.
        statistics: Counts rejected requests.
    """

    def __init__(self, settings: Settings, statistics: Statistics) -> None:
        limit = max(1, settings.max_held_bytes // settings.max_request_bytes)
        self._requests = BoundedReader("the request", limit=limit, seconds=settings.max_request_seconds)
        self._streams = BoundedReader("the stream's next request", limit=_STREAMS_PER_REQUEST * limit)
        self._statistics = statistics
        self._handlers: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of a call. gRPC asks for each."""
        method: str = handler_call_details.method
        known = self._handlers.get(method)
        if known is None and (handler := await continuation(handler_call_details)) is not None:
            known = self._handlers[method] = self._wrap(method, handler)
        return known

    def _wrap(self, method: str, handler: Any) -> Handler:
        """Return a handler that reads its messages itself."""
        serialisers = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary is not None:
            answer = handler.unary_unary

            async def unary(_: object, context: Context) -> Any:
                return await answer(await self._read(method, context), context)

            return grpc.stream_unary_rpc_method_handler(unary, *serialisers)

        async def stream(_: object, context: Context) -> None:
            if handler.unary_stream is not None:
                replies = handler.unary_stream(await self._read(method, context), context)
            else:
                replies = handler.stream_stream(StreamRequests(self._streams, context), context)
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

    async def _read(self, method: str, context: Context) -> Any:
        """Read the only message of a call."""
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
            # gRPC itself would leave a caller that is still there without an answer. One that has left
            # does not count.
            await abort(context, InvalidRequestError("a call must bring a request, this one ended without"))
        return request
