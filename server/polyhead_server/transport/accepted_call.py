"""What the calls that `AcceptQueue` accepts have in common.

Two threads use a call. The polling thread gets its events and reads its requests; the event loop runs its
handler. Both may send.
"""

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn, Protocol

import grpc

from polyhead_server.errors import RequestError, UnavailableError, shorten
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.observer import Drop
from polyhead_server.observability.request_log import request_id
from polyhead_server.observability.statistics import Statistics
from polyhead_server.transport.access import Guard, Rejection
from polyhead_server.transport.call import INFERENCE, logged_reply
from polyhead_server.transport.cygrpc import cygrpc
from polyhead_server.transport.reading import BoundedReader


class CallAbortedError(Exception):
    """The call has its status; its handler has nothing more to do."""


class CallQueue(Protocol):
    """What a call needs of the queue that has accepted it: see `AcceptQueue`."""

    guard: Guard
    statistics: Statistics
    loop: asyncio.AbstractEventLoop
    running: "set[AcceptedCall]"
    closed: bool

    def hand_over(self, call: "AcceptedCall", step: Callable[[], None], *, waits: bool = False) -> None:
        """Let the event loop take a step of a call."""

    def forget(self, call: "AcceptedCall") -> None:
        """Forget a call that has ended."""


class AcceptedCall:
    """A call: see `UnaryCall` and `StreamCall`.

    Args:
        queue: Has accepted it.
        method: The method's full name.
        event: Has brought it.
        answer: Its handler.
        reader: Bounds how many requests are waited for, and how long.
        check: Raises an error for a request that is not kept until the event loop has time for it.
    """

    def __init__(
        self,
        queue: CallQueue,
        method: str,
        event: Any,
        *,
        answer: Callable[..., Awaitable[Any]],
        reader: BoundedReader,
        check: Callable[[bytes], None] | None = None,
    ) -> None:
        self.method = method
        self._queue = queue
        self._handler = answer
        self._reader = reader
        self._check = check
        self._call = event.call
        self._metadata = event.invocation_metadata
        # Once, and by the monotonic clock: gRPC derives it from the wall clock, which may be set meanwhile.
        now = queue.loop.time()  # first, so that the result is never later than gRPC's own
        self.deadline: float = now + event.call_details.deadline - time.time()
        """When the caller stops waiting, in the event loop's time; in ages, if it waits forever."""
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

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call a function with this call when it has ended, and its reply has been sent if there is one."""
        self._callbacks.append(callback)

    def abort(self, error: Exception) -> NoReturn:
        """End the call with the status of an error, as raising it does, but where the request's record is.

        Raises:
            CallAbortedError: Always.
        """
        self._fail(error)
        raise CallAbortedError from error

    # ---- While a request is waited for -------------------------------------------------------------

    def is_excused(self) -> bool:
        """Return whether the caller is waiting for the server, so that the time does not count."""
        return False

    def give_up(self, reason: Exception) -> None:
        """Wait no longer for a request, for this reason. Called on the event loop."""
        raise NotImplementedError

    # ---- In the polling thread ---------------------------------------------------------------------

    def open(self) -> None:
        """Begin with the call, unless a guard rejects it."""
        self._call.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(0),), self._close)
        if rejection := self._queue.guard.rejection(self.method, self._metadata):
            self._queue.hand_over(self, partial(self._deny, rejection))
        else:
            self._begin()

    def _begin(self) -> None:
        raise NotImplementedError

    def _receive(self) -> None:
        """Wait for a request."""
        tag = self._received
        self._reading = weakref.ref(tag)
        self._call.start_server_batch((cygrpc.ReceiveMessageOperation(0),), tag)

    def _received(self, event: Any) -> None:
        """Take a request, or let the handler know that it cannot be read."""
        self._reading = None
        try:
            self._take(self._read_message(event))
        except Exception as error:
            self.lose(error)
            raise

    def _take(self, request: bytes | RequestError | None) -> None:
        """Take a request, or why it is not taken, or that there is none."""
        raise NotImplementedError

    def end_if_lost(self) -> None:
        """Answer the call if its request was read, and is lost."""
        if self._reading is not None and self._reading() is None:
            self._reading = None
            self.lose(MemoryError())

    def lose(self, error: Exception) -> None:
        """Let the event loop know that a request cannot be read."""
        self._queue.hand_over(self, partial(self.give_up, error))

    def _close(self, event: Any) -> None:
        self._queue.forget(self)
        if event.batch_operations[0].cancelled():
            self._left = True
            self._queue.hand_over(self, self._cancel)

    def _read_message(self, event: Any) -> bytes | RequestError | None:
        """Return the request that an event brings, or why it is not taken; None if it brings none."""
        if not event.success:  # others come without a message
            self._queue.hand_over(self, self._refuse)
        message: bytes | None = event.batch_operations[0].message()
        if message is not None and self._check is not None:
            try:
                self._check(message)
            except RequestError as error:
                return error.with_traceback(None)  # which would keep the message
        return message

    def _sent(self, _event: Any) -> None:
        self._queue.hand_over(self, self._call_back)

    # ---- On the event loop -------------------------------------------------------------------------

    def _deny(self, rejection: Rejection) -> None:
        code, message = rejection
        if self.method in INFERENCE:
            self._queue.statistics.rejected(code.name)
        LOGGER.debug("call of %s rejected: %s: %s", shorten(self.method), code.name, message)
        self._send_status(code, message)

    def _refuse(self) -> None:
        """Count a request that gRPC refuses. It has told the caller, and ends the call: maybe before this."""
        if self._ended and not self._left:
            return
        error = self._reader.too_large()
        logged_reply(error, request_id(self))
        self._count(error)

    def _count(self, error: Exception) -> None:
        """Count a request that cannot be read, if it is one of inference."""
        if self.method not in INFERENCE:
            return
        if isinstance(error, UnavailableError):
            self._queue.statistics.on_drop(Drop.MEMORY)
        self._queue.statistics.failed(total_ns=time.perf_counter_ns() - self._began_ns, error=error)

    def _start(self) -> None:
        """Let the handler answer."""
        self._task = self._queue.loop.create_task(self._run())
        self._queue.running.add(self)

    async def _run(self) -> None:
        self._started = True
        try:
            if not self._left:
                await self._answer()
        except* CallAbortedError:
            pass
        except* Exception as errors:
            self._fail(errors.exceptions[0])
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
        reply = logged_reply(error, request_id(self))
        self._send_status(reply.code, reply.message, reply.trailers)

    def _send_status(self, code: grpc.StatusCode, details: str = "", trailers: Any = ()) -> None:
        status = cygrpc.SendStatusFromServerOperation(tuple(trailers), code.value[0], details, 0)
        self._send(*self._initial_metadata(), status)

    def _initial_metadata(self) -> tuple[Any, ...]:
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


def _ignore(_event: Any) -> None:
    """Take note of an event that nothing depends on."""
