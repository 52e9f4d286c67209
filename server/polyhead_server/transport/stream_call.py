"""A call with any number of requests and replies, as `AcceptQueue` accepts it."""

import asyncio
import math
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from threading import Lock
from typing import Any

import grpc

from polyhead_server.errors import RequestError
from polyhead_server.inference.wire import LARGE
from polyhead_server.transport.accepted_call import AcceptedCall, CallQueue
from polyhead_server.transport.cygrpc import cygrpc
from polyhead_server.transport.reading import MAX_IN_PROGRESS, BoundedReader


class StreamCall(AcceptedCall):
    """A call with any number of requests and replies. Its handler iterates over the requests.

    Requests are read ahead of their answers, so that the handler gets all that have come. gRPC is asked for
    one at a time:

    | request   | event                      | thread     | then
    | --------- | -------------------------- | ---------- | -----------------------------------------
    | none      | the call has been accepted | polling    | asked for
    | asked for | it has come                | polling    | it arrives; if few are unanswered, asked for again
    | none      | one has been answered      | event loop | asked for, unless the call has ended
    | asked for | there is none left         | polling    | the end arrives
    | asked for | it is lost                 | polling    | the error arrives
    | asked for | the reader gives it up     | event loop | the error arrives

    Replies are sent one after the other, and last the status. The handler waits only if much is left to send:

    | reply     | event                      | thread     | then
    | --------- | -------------------------- | ---------- | -----------------------------------------
    | none      | `write`, or the status     | event loop | sending
    | sending   | `write`, or the status     | event loop | it waits; if much does, so does `write`
    | sending   | sent, and others wait      | polling    | sending the next; if little waits, `write` goes on
    | sending   | sent, and none waits       | polling    | none
    | sending   | the status is sent         | polling    | sending for good: nothing follows
    | sending   | word of it is lost         | event loop | the call is cancelled
    | sending   | the call is over           | polling    | what waits is dropped

    Args:
        queue: Has accepted it.
        method: The method's full name.
        event: Has brought it.
        answer: Its handler.
        reader: Bounds how many streams are waited for.
        check: Raises an error for a request that is not kept.
        ahead: How many requests are read and not answered, at most.
    """

    def __init__(
        self,
        queue: CallQueue,
        method: str,
        event: Any,
        *,
        answer: Callable[["StreamCall"], Awaitable[None]],
        reader: BoundedReader,
        check: Callable[[bytes], None] | None = None,
        ahead: int = MAX_IN_PROGRESS,
    ) -> None:
        super().__init__(queue, method, event, answer=answer, reader=reader, check=check)
        self._ahead = ahead
        self._requests: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        """Those that have come, and what ends them. Only the event loop changes it."""
        self._to_write: asyncio.Future[None] | None = None
        """Done when more may be written."""
        self._has_initial_metadata = False
        self._closed = False
        """The call is over. Only the polling thread uses it."""
        self._lock = Lock()
        """For all that follows, which both threads change."""
        self._unanswered = 0
        """Requests that have been read, and not answered."""
        self._to_send: deque[tuple[Any, Callable[[Any], None]]] = deque()
        """Operations with their tags: messages, and what ends the call, that wait for those before."""
        self._sending = False
        """Something is being sent."""
        self._unsent = 0
        """Bytes of the messages that have not been sent."""
        self._writing: weakref.ref[Callable[[Any], None]] | None = None
        """The tag of what is being sent."""

    # ---- What handlers see -------------------------------------------------------------------------

    def __aiter__(self) -> "StreamCall":
        return self

    async def __anext__(self) -> bytes:
        """Return the next request.

        Raises:
            UnavailableError: It is not prompt, and as many others as may be are not either.
            ExpiredError: It has not come in time.
            MemoryError: It does not fit into memory.
        """
        if self._requests.empty():
            self._reader.begin(self)
            try:
                request = await self._requests.get()
            finally:
                self._reader.finish(self)
        else:
            request = self._requests.get_nowait()
        if isinstance(request, Exception):
            raise request
        return request

    async def write(self, message: bytes, *, until: float = math.inf) -> None:
        """Send a message after those before it. Return when little waits to be sent: mostly at once.

        Args:
            message: What to send.
            until: When the reader is cut off that has not taken enough, in the event loop's time.

        Raises:
            CancelledError: The caller has left, or the call has ended.
        """
        if self._ended or self._left or self._queue.closed:
            raise asyncio.CancelledError
        tag = partial(self._written, len(message))
        operations = (*self._initial_metadata(), cygrpc.SendMessageOperation(message, 0))
        with self._lock:
            self._unsent += len(message)
        del message
        self._start_sending(operations, tag)
        del operations, tag  # which only gRPC may hold
        with self._lock:
            if self._is_writable():
                return
            writable = self._to_write = self._queue.loop.create_future()
        timer = self._queue.loop.call_at(until, self._cancel)
        try:
            await writable
        finally:
            timer.cancel()

    def answered(self) -> None:
        """Note that a request has been answered, so that another may be read ahead."""
        with self._lock:
            self._unanswered -= 1
            paused = self._unanswered == self._ahead - 1
        if paused and not (self._ended or self._left or self._queue.closed):
            self._receive()

    # ---- While a request is waited for -------------------------------------------------------------

    def is_excused(self) -> bool:
        """Return whether an answer is due to the caller, and none waits to be read."""
        return self._unanswered > 0 and not self._unsent

    def give_up(self, reason: Exception) -> None:
        """Let the handler get an error where it reads."""
        self._requests.put_nowait(reason)

    # ---- In the polling thread ---------------------------------------------------------------------

    def _begin(self) -> None:
        self._queue.hand_over(self, self._start)
        self._receive()

    def _take(self, request: bytes | RequestError | None) -> None:
        if request is not None and not self._closed:
            with self._lock:
                self._unanswered += 1
                go_on = self._unanswered < self._ahead  # else `answered` does
            if go_on:
                self._receive()
        # Last, since the event loop then waits for the interpreter's lock.
        arrived = StopAsyncIteration() if request is None else request
        self._queue.hand_over(self, partial(self._requests.put_nowait, arrived))

    def end_if_lost(self) -> None:
        """Answer the call if a request is lost. End it if word of a sent reply is: no other would be sent."""
        super().end_if_lost()
        # Not here: the event loop may be about to return from sending, with the tag.
        self._queue.hand_over(self, self._end_if_stuck)

    def _sent(self, event: Any) -> None:
        self._writing = None
        super()._sent(event)

    def _written(self, size: int, _event: Any) -> None:
        """Send what waits behind a message that has been sent, or cannot be."""
        self._writing = None
        with self._lock:
            self._unsent -= size
            if self._to_write is not None and self._is_writable():
                self._queue.hand_over(self, partial(_wake, self._to_write))
                self._to_write = None
        self._send_next()

    def _send_next(self) -> None:
        """Send what waits the longest. In either thread, but only in one at a time."""
        with self._lock:
            if self._closed or self._queue.closed:
                self._to_send.clear()
            if not self._to_send:
                self._sending = False
                return
            operations, tag = self._to_send.popleft()
        self._writing = weakref.ref(tag)
        try:
            super()._start_sending(operations, tag)
        except Exception:
            self._call.cancel()  # nothing would be sent after it
            raise

    def _close(self, event: Any) -> None:
        self._closed = True  # nothing may be sent or read once the queue knows
        super()._close(event)
        self._queue.hand_over(self, self._call_back)

    # ---- On the event loop -------------------------------------------------------------------------

    def _is_writable(self) -> bool:
        return self._unsent < LARGE and len(self._to_send) < MAX_IN_PROGRESS

    def _end_if_stuck(self) -> None:
        """End the call if it waits for a message to be sent, and word of that is lost."""
        if self._writing is not None and self._writing() is None:
            self._call.cancel()

    async def _answer(self) -> None:
        await self._handler(self)
        self._send_status(grpc.StatusCode.OK)

    def _initial_metadata(self) -> tuple[Any, ...]:
        if self._has_initial_metadata:
            return ()
        self._has_initial_metadata = True
        return super()._initial_metadata()

    def _start_sending(self, operations: Any, tag: Callable[[Any], None]) -> None:
        """Send now, or behind what is being sent."""
        with self._lock:
            self._to_send.append((operations, tag))
            begins, self._sending = not self._sending, True
        if begins:
            self._send_next()


def _wake(future: "asyncio.Future[None]") -> None:
    """Let the coroutine go on that waits for a future, unless it has been cancelled."""
    if not future.done():
        future.set_result(None)
