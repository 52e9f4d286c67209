"""The calls that `AcceptQueue` accepts.

Two threads use a call. The polling thread gets its events and reads its requests; the event loop runs its
handler. Both may send. Here, too, private names of grpcio are used: its operations.
"""

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import grpc

from polyhead_server.errors import ErrorReply, InvalidRequestError, RequestError
from polyhead_server.inference.wire import LARGE
from polyhead_server.observability.logs import LOGGER
from polyhead_server.transport.access import Guard, Rejection
from polyhead_server.transport.call import CallContext, StreamContext, reject
from polyhead_server.transport.reading import (
    EMPTY_CALL,
    MAX_IN_PROGRESS,
    OVER_SECONDS,
    BoundedReader,
    RequestReader,
    StreamRequests,
)

if TYPE_CHECKING:
    from polyhead_server.transport.accept_queue import AcceptQueue

try:
    from grpc._cython import cygrpc  # type: ignore[attr-defined]
except ImportError:  # `accept_queue.check_grpcio` says so
    cygrpc = None

Answer: TypeAlias = Callable[[bytes, CallContext], Awaitable[bytes]]
StreamAnswer: TypeAlias = Callable[[StreamRequests, StreamContext], Awaitable[None]]

_NO_DEADLINE = 1e11
"""Deadlines are seconds since the epoch. gRPC gives a call without one a time beyond this."""


class AcceptedCall:
    """A call, as its handler sees it: see `CallContext`.

    Args:
        queue: Has accepted it.
        method: The method's full name.
        event: Has brought it.
        reader: Bounds how many requests are waited for.
        check: Raises an error for a request that is not kept until the event loop has time for it.
    """

    __slots__ = (
        "_began_ns",
        "_call",
        "_callbacks",
        "_check",
        "_deadline",
        "_ended",
        "_left",
        "_metadata",
        "_queue",
        "_reader",
        "_reading",
        "_started",
        "_task",
        "method",
    )

    def __init__(
        self,
        queue: "AcceptQueue",
        method: str,
        event: Any,
        reader: BoundedReader,
        check: Callable[[bytes], None] | None,
    ) -> None:
        self.method = method
        self._queue = queue
        self._reader = reader
        self._check = check
        self._call = event.call
        self._metadata = event.invocation_metadata
        self._deadline: float = event.call_details.deadline
        self._began_ns = time.perf_counter_ns()
        self._reading: weakref.ref[Callable[[Any], None]] | None = None
        """The tag of the request that is waited for."""
        self._callbacks: list[Callable[[Any], object]] = []
        self._task: asyncio.Task[None] | None = None
        self._started = False
        self._ended = False
        """Its status has been sent, or waits for that behind replies."""
        self._left = False
        """Its caller has left, or its deadline has passed."""

    # ---- What handlers see -------------------------------------------------------------------------

    def invocation_metadata(self) -> Any:
        """Return what the caller has sent with the call."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller stops waiting, or None if it waits forever."""
        return None if self._deadline > _NO_DEADLINE else max(self._deadline - time.time(), 0.0)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call a function with this call when it has ended, and its reply has been sent if there is one."""
        self._callbacks.append(callback)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """End the call with a status.

        Raises:
            AbortError: Always.
        """
        self._send_status(code, details, trailing_metadata)
        raise grpc.aio.AbortError("Locally aborted.")

    # ---- In the polling thread ---------------------------------------------------------------------

    def open(self) -> None:
        """Begin with the call, unless a guard rejects it."""
        self._call.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(0),), self._close)
        for guard in self._queue.guards:
            rejection = guard.rejection(self.method, self._metadata)
            if rejection is not None:
                self._queue.hand_over(partial(self._deny, guard, rejection))
                return
        self._begin()

    def _begin(self) -> None:
        raise NotImplementedError

    def _receive(self) -> None:
        """Wait for a request."""
        tag = self._received
        self._reading = weakref.ref(tag)
        self._call.start_server_batch((cygrpc.ReceiveMessageOperation(0),), tag)

    def _received(self, event: Any) -> None:
        """Take a request."""
        raise NotImplementedError

    def end_if_lost(self) -> None:
        """Answer the call if its request was read, and is lost."""
        if self._reading is not None and self._reading() is None:
            self._reading = None
            self.lose(MemoryError())

    def lose(self, error: Exception) -> None:
        """Let the handler know that a request cannot be read."""
        raise NotImplementedError

    def _close(self, event: Any) -> None:
        self._queue.forget(self)
        if event.batch_operations[0].cancelled():
            self._left = True
            self._queue.hand_over(self._cancel)

    def _read_message(self, event: Any) -> Any:
        """Return the request that an event brings, or why it is not taken; None if it brings none."""
        self._reading = None
        if not event.success:  # others come without a message
            self._queue.hand_over(self._refuse)
        message = event.batch_operations[0].message()
        if message is not None and self._check is not None:
            try:
                self._check(message)
            except RequestError as error:
                return error.with_traceback(None)  # which would keep the message
        return message

    def _sent(self, _event: Any) -> None:
        self._queue.hand_over(self._call_back)

    # ---- On the event loop -------------------------------------------------------------------------

    def _deny(self, guard: Guard, rejection: Rejection) -> None:
        guard.count(self.method, rejection)
        self._send_status(*rejection)

    def _refuse(self) -> None:
        """Count a request that gRPC refuses. It has told the caller, and ends the call: maybe before this."""
        if self._ended and not self._left:
            return
        error = self._reader.too_large(or_else="cannot be decompressed")
        reject(self, error)
        self._reader.count(self.method, error, self._began_ns)

    def _start(self) -> None:
        """Let the handler answer."""
        self._task = self._queue.loop.create_task(self._run())
        self._queue.running.add(self)

    async def _run(self) -> None:
        self._started = True
        try:
            if not self._left:
                await self._answer()
        except grpc.aio.AbortError:
            pass
        except Exception as error:
            self._fail(error)
        finally:
            self._task = None  # its error may refer to this call
            self._queue.running.discard(self)
            if not self._ended:  # it was cancelled
                self._end()

    async def _answer(self) -> None:
        raise NotImplementedError

    def _cancel(self) -> None:
        if self._started and not self._ended and self._task is not None:
            self._task.cancel()

    def fail(self, error: Exception) -> None:
        """Answer a call of which a step has failed, if it has no answer yet, and end its handler."""
        try:
            self._fail(error)
        except Exception:
            LOGGER.exception("a call cannot be answered")
            self._end()
        self._left = True  # as far as a handler goes that has not started
        if self._started and self._task is not None:
            self._task.cancel()

    def _fail(self, error: Exception) -> None:
        reply: ErrorReply = reject(self, error)
        self._send_status(reply.code, reply.message, reply.trailers)

    def _send_status(self, code: grpc.StatusCode, details: str = "", trailers: Any = ()) -> None:
        status = cygrpc.SendStatusFromServerOperation(tuple(trailers), code.value[0], details, 0)
        self._send(*self._head(), status)

    def _head(self) -> tuple[Any, ...]:
        """Return what must be sent first."""
        return (cygrpc.SendInitialMetadataOperation((), 0),)

    def _send(self, *operations: Any) -> None:
        """Send what ends the call. Only the first time counts."""
        if self._ended:
            return
        if self._left or self._queue.closed:
            self._end()
            return
        self._ended = True
        try:
            self._start_sending(operations, self._sent if self._callbacks else _ignore)
        except Exception:
            LOGGER.exception("a call cannot be answered")
            self._end()

    def _start_sending(self, operations: Any, tag: Callable[[Any], None]) -> None:
        if error := self._call.start_server_batch(operations, tag):
            raise RuntimeError(f"gRPC does not take the answer: error {error}")

    def _end(self) -> None:
        """End the call without an answer."""
        self._ended = True
        if not self._left and not self._queue.closed:
            self._call.cancel()
        self._call_back()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                LOGGER.exception("the end of a call failed")


class UnaryCall(AcceptedCall):
    """A call with one request, which is read before its handler starts.

    Args:
        queue: Has accepted it.
        method: The method's full name.
        event: Has brought it.
        answer: Returns the reply to a request.
        reader: Bounds how many requests are waited for, and how long.
        check: See `AcceptedCall`.
    """

    __slots__ = ("_handler", "_request")

    def __init__(
        self,
        queue: "AcceptQueue",
        method: str,
        event: Any,
        *,
        answer: Answer,
        reader: RequestReader,
        check: Callable[[bytes], None] | None = None,
    ) -> None:
        super().__init__(queue, method, event, reader, check)
        self._handler = answer
        self._request: bytes | None = None

    # ---- In the polling thread ---------------------------------------------------------------------

    def _begin(self) -> None:
        self._reader.begin(self._fail_read)
        self._receive()

    def _received(self, event: Any) -> None:
        self._reader.finish(self._fail_read)
        request = self._read_message(event)
        if isinstance(request, RequestError):
            self._queue.hand_over(partial(self._fail_read, request), waits=True)
        else:
            self._request = request
            self._queue.hand_over(self._start, waits=True)

    def lose(self, error: Exception) -> None:
        """Answer the call with the error: its handler has not started."""
        self._queue.hand_over(partial(self._fail_read, error))
        self._reader.finish(self._fail_read)

    # ---- On the event loop -------------------------------------------------------------------------

    def _fail_read(self, error: Exception) -> None:
        """Answer a call whose request cannot be read, unless it has come or its caller has left."""
        if self._ended or self._left or self._request is not None:
            return
        try:
            self._reader.count(self.method, error, self._began_ns)
        finally:
            self._fail(error)

    def _refuse(self) -> None:
        super()._refuse()
        self._ended = True

    def _start(self) -> None:
        if self._ended or self._left:
            self._request = None
        elif self._request is None:
            empty = InvalidRequestError(EMPTY_CALL)
            self._queue.loop.call_later(OVER_SECONDS, self._fail_read, empty)
        else:
            super()._start()

    async def _answer(self) -> None:
        request, self._request = self._request, None
        assert request is not None  # noqa: S101 - see `_start`
        answer = self._handler(request, self)
        del request  # the handler holds it as long as it needs it
        reply = await answer
        self._send(
            *self._head(),
            cygrpc.SendMessageOperation(reply, 0),
            cygrpc.SendStatusFromServerOperation((), cygrpc.StatusCode.ok, b"", 0),
        )


class StreamCall(AcceptedCall):
    """A call with any number of requests and replies.

    Requests are read ahead of their answers, so that the handler gets all that have come. Replies are sent
    one after the other; the handler waits for that only if much is left to send.

    Args:
        queue: Has accepted it.
        method: The method's full name.
        event: Has brought it.
        answer: Answers the requests.
        reader: Bounds how many streams are waited for.
        check: See `AcceptedCall`.
        ahead: How many requests are read and not answered, at most.
    """

    __slots__ = (
        "_closed",
        "_handler",
        "_has_head",
        "_lock",
        "_requests",
        "_room",
        "_sending",
        "_to_read",
        "_to_send",
        "_to_write",
        "_unsent",
        "_writing",
    )

    def __init__(
        self,
        queue: "AcceptQueue",
        method: str,
        event: Any,
        *,
        answer: StreamAnswer,
        reader: BoundedReader,
        check: Callable[[bytes], None] | None = None,
        ahead: int = MAX_IN_PROGRESS,
    ) -> None:
        super().__init__(queue, method, event, reader, check)
        self._handler = answer
        self._requests: deque[Any] = deque()
        """Those that have come: messages, `grpc.aio.EOF`, or an error. Only the event loop changes it."""
        self._to_read: asyncio.Future[None] | None = None
        """Done when there is something to read."""
        self._to_write: asyncio.Future[None] | None = None
        """Done when more may be written."""
        self._has_head = False
        self._closed = False
        """The call is over. Only the polling thread uses it."""
        self._lock = Lock()
        """For all that follows."""
        self._room = ahead
        """How many more requests may be read."""
        self._to_send: deque[bytes | tuple[Any, Callable[[Any], None]]] = deque()
        """Messages, and what ends the call with its tag, that wait for those before."""
        self._sending = False
        """Something is being sent."""
        self._unsent = 0
        """Bytes of the messages that have not been sent."""
        self._writing: weakref.ref[Callable[[Any], None]] | None = None
        """The tag of the message that is being sent."""

    # ---- What handlers see -------------------------------------------------------------------------

    @property
    def has_come(self) -> bool:
        """Whether there is something to read."""
        return bool(self._requests)

    async def read(self) -> Any:
        """Return the next message, or `grpc.aio.EOF` when the caller sends no more.

        Raises:
            MemoryError: It does not fit into memory.
        """
        if not self._requests:
            self._to_read = self._queue.loop.create_future()
            try:
                await self._to_read
            finally:
                self._to_read = None
        request = self._requests.popleft()
        if isinstance(request, Exception):
            raise request
        return request

    async def write(self, message: bytes) -> None:
        """Send a message after those before it. Return when little waits to be sent: mostly at once.

        Raises:
            CancelledError: The caller has left, or the call has ended.
        """
        if self._ended or self._left or self._queue.closed:
            raise asyncio.CancelledError
        with self._lock:
            self._unsent += len(message)
            self._to_send.append(message)
            begins, self._sending = not self._sending, True
            writable = None
            if not self._is_writable():
                writable = self._to_write = self._queue.loop.create_future()
        del message
        if begins:
            self._send_next()
        if writable is not None:
            await writable

    # ---- In the polling thread ---------------------------------------------------------------------

    def _begin(self) -> None:
        self._queue.hand_over(self._start)
        self._receive()

    def _received(self, event: Any) -> None:
        message = self._read_message(event)
        if message is not None and not self._closed:
            with self._lock:
                self._room -= 1
                go_on = self._room > 0  # else `read_on` does
            if go_on:
                self._receive()
        # Last, since the event loop then waits for the interpreter's lock.
        self._queue.hand_over(partial(self._arrive, grpc.aio.EOF if message is None else message))

    def lose(self, error: Exception) -> None:
        """Let the handler get the error where it reads."""
        self._queue.hand_over(partial(self._arrive, error))

    def end_if_lost(self) -> None:
        """Answer the call if a request is lost. End it if word of a sent reply is: no other would be sent."""
        super().end_if_lost()
        self._queue.hand_over(self._end_if_stuck)  # which may be about to return from sending, with the tag

    def _written(self, size: int, _event: Any) -> None:
        """Send what waits behind a message that has been sent, or cannot be."""
        self._writing = None
        with self._lock:
            self._unsent -= size
            if self._to_write is not None and self._is_writable():
                self._queue.hand_over(partial(_wake, self._to_write))
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
            following = self._to_send.popleft()
        try:
            if isinstance(following, bytes):
                tag = partial(self._written, len(following))
                self._writing = weakref.ref(tag)
                super()._start_sending((*self._head(), cygrpc.SendMessageOperation(following, 0)), tag)
            else:
                super()._start_sending(*following)
        except Exception:
            self._call.cancel()  # nothing would be sent after it
            raise

    def _close(self, event: Any) -> None:
        self._closed = True  # nothing may be sent or read once the queue knows
        super()._close(event)
        self._queue.hand_over(self._call_back)

    # ---- On the event loop -------------------------------------------------------------------------

    def _is_writable(self) -> bool:
        return self._unsent < LARGE and len(self._to_send) < MAX_IN_PROGRESS

    def _end_if_stuck(self) -> None:
        """End the call if it waits for a message to be sent, and word of that is lost."""
        if self._writing is not None and self._writing() is None:
            self._call.cancel()

    def _arrive(self, request: Any) -> None:
        self._requests.append(request)
        if self._to_read is not None:
            _wake(self._to_read)

    def read_on(self) -> None:
        """Read another request ahead, since one has been answered."""
        with self._lock:
            self._room += 1
            paused = self._room == 1
        if paused and not (self._ended or self._left or self._queue.closed):
            self._receive()

    async def _answer(self) -> None:
        await self._handler(StreamRequests(self._reader, self), self)
        self._send_status(grpc.StatusCode.OK)

    def _head(self) -> tuple[Any, ...]:
        if self._has_head:
            return ()
        self._has_head = True
        return super()._head()

    def _start_sending(self, operations: Any, tag: Callable[[Any], None]) -> None:
        """Send now, or behind what is being sent."""
        with self._lock:
            self._to_send.append((operations, tag))
            if self._sending:
                return
            self._sending = True
        self._send_next()


def _ignore(_event: Any) -> None:
    """Take note of an event that nothing depends on."""


def _wake(future: "asyncio.Future[None]") -> None:
    """Let the coroutine go on that waits for a future, unless it has been cancelled."""
    if not future.done():
        future.set_result(None)
