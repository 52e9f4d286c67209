"""Accept the calls of one unary method on a completion queue of our own, inside a `grpc.aio` server.

`grpc.aio` accepts one call for each turn of the event loop, so that few requests are known at a time and
batches stay small. Here many accepts are outstanding. A thread polls the queue and reads the requests; the
event loop gets whole ones, all that have come at once. The server's other methods stay with `grpc.aio`.

This is the only module that uses private names of grpcio, those on which its threaded server is built.
`unusable_reason` tries them out. Interceptors do not run here: `AcceptQueue` asks the guards itself.
"""

import asyncio
import gc
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any, NoReturn, TypeAlias

import grpc

from polyhead_server.errors import ErrorReply, InvalidRequestError
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.statistics import Statistics
from polyhead_server.settings import Settings
from polyhead_server.transport.access import Guard, Rejection
from polyhead_server.transport.call import CallContext, reject
from polyhead_server.transport.reading import EMPTY_CALL, RequestReader

try:
    from grpc._cython import cygrpc  # type: ignore[attr-defined]
except ImportError:  # `unusable_reason` says so
    cygrpc = None

Answer: TypeAlias = Callable[[bytes, CallContext], Awaitable[bytes]]

ACCEPTS = 64
"""Accepts that are outstanding. Further calls wait in gRPC until the polling thread takes them."""

MAX_CALLS = 16_384
"""Calls that are open at once. Further ones wait in gRPC, as they do where nothing accepts them."""

_CALLS_PER_TURN = 64
"""Calls that start in one turn of the event loop, so that other work gets its turn."""

_END_SECONDS = 5.0
_CHECK_SECONDS = 10.0
_NO_DEADLINE = 1e11
"""Deadlines are seconds since the epoch. gRPC gives a call without one a time beyond this."""


class AcceptQueue:
    """Answer the calls of a method with coroutines of the event loop.

    Create it before the server starts, and start it after.

    Args:
        server: The server that listens.
        method: The method's full name, such as `/package.Service/Method`.
        answer: Returns the reply to a request.
        guards: Reject calls before their requests are read.
        reader: Bounds how many requests are waited for, and how long.

    Raises:
        Exception: This grpcio lacks what is needed.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        method: str,
        answer: Answer,
        *,
        guards: Sequence[Guard],
        reader: RequestReader,
    ) -> None:
        self.method = method
        self.answer = answer
        self.guards = guards
        self.reader = reader
        self.loop = asyncio.get_running_loop()
        self.calls: set[AcceptedCall] = set()
        """The open calls. Only the polling thread changes it."""
        self.running: set[AcceptedCall] = set()
        """The calls that are being answered. Only the event loop changes it."""
        self.closed = False
        """Nothing may be sent any more: gRPC would abort the process."""
        self._server = server
        inside: Any = server
        self._core = next(one for one in gc.get_referents(inside._server) if isinstance(one, cygrpc.Server))
        self._completions = cygrpc.CompletionQueue()
        self._core.register_method(method)
        self._core.register_completion_queue(self._completions)
        self._thread = Thread(target=self._poll, name="accept", daemon=True)
        self._arrived: deque[Callable[[], None]] = deque()
        self._woken = False
        # A tag for each accept. Nothing but gRPC holds one that is outstanding.
        self._tags: weakref.WeakSet[partial[None]] = weakref.WeakSet()
        self._withheld: list[partial[None]] = []
        self._outstanding = 0
        self._stopping = False
        self._lock = Lock()
        self._idle = asyncio.Event()

    def start(self) -> None:
        """Accept calls. The server has started."""
        self._add_accepts()
        self._thread.start()

    async def stop(self, grace: float) -> None:
        """Stop the server and this queue.

        Args:
            grace: Seconds that calls may take to end. Then they are cancelled.
        """
        with self._lock:  # no accept is on its way to a server that may be gone by then
            self._stopping = True
        await self._server.stop(grace)
        if self._thread.is_alive():
            self._tell_if_idle()
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await self._idle.wait()
            if not self._idle.is_set():
                LOGGER.error("%d calls have not ended, so their thread runs on", len(self.calls))
                return
        if not self.closed:
            self.closed = True
            self._completions.shutdown()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    # ---- In the polling thread ---------------------------------------------------------------------

    def _poll(self) -> None:
        """Run what each event's tag says, until the queue is shut down and empty."""
        lost = False
        while True:
            try:
                if lost:
                    self._recover()
                    lost = False
                event = self._completions.poll()
                if event.tag is None:
                    return
                event.tag(event)
            except MemoryError:
                lost = True
            except Exception:
                LOGGER.exception("accepting a call failed")
            event = None  # it may hold a large request, and the next may be long in coming
            if self._stopping:
                self._tell_if_idle()

    def _recover(self) -> None:
        """Find out whose event is lost: one that does not fit into memory takes its tag along."""
        for call in self.calls.copy():
            call.end_if_lost()
        self._outstanding = len(self._tags) - len(self._withheld)
        self._add_accepts()

    def _add_accepts(self) -> None:
        for _ in range(ACCEPTS - len(self._tags)):
            tag = partial(self._accept)
            self._tags.add(tag)
            self._request(tag)

    def _request(self, tag: "partial[None]") -> None:
        """Ask gRPC for a call."""
        if len(self.calls) >= MAX_CALLS and not self._stopping:
            self._withheld.append(tag)
            return
        with self._lock, suppress(ValueError):  # the server has been stopped
            if not self._stopping:
                self._core.request_registered_call(self._completions, self._completions, self.method, tag)
                self._outstanding += 1

    def _accept(self, event: Any) -> None:
        """Take the call that has come, and ask for another."""
        try:
            if event.success:  # else the server stops
                call = AcceptedCall(self, event)
                self.calls.add(call)
                try:
                    call.open()
                except BaseException:
                    self.calls.discard(call)
                    event.call.cancel()
                    raise
        finally:
            self._outstanding -= 1  # not before it is known as a call, for `_tell_if_idle`
            if event.success:
                self._request(event.tag)

    def forget(self, call: "AcceptedCall") -> None:
        """Forget a call that has ended."""
        self.calls.discard(call)
        if self._withheld:
            self._request(self._withheld.pop())

    def hand_over(self, step: Callable[[], None]) -> None:
        """Let the event loop take a step, after those before it."""
        self._arrived.append(step)
        if not self._woken:
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self._take_steps)
            except BaseException as error:
                self._woken = False  # the next one tries again
                if not isinstance(error, RuntimeError):  # which says that the event loop has been closed
                    raise

    def _tell_if_idle(self) -> None:
        if not self._outstanding and not self.calls:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._idle.set)

    # ---- On the event loop -------------------------------------------------------------------------

    def _take_steps(self) -> None:
        self._woken = False
        for _ in range(_CALLS_PER_TURN):
            if not self._arrived:
                return
            step = self._arrived.popleft()
            try:
                step()
            except Exception:
                LOGGER.exception("a call failed")
        if not self._woken:
            self._woken = True
            self.loop.call_soon(self._take_steps)


class AcceptedCall:
    """A call, as its handler sees it: what handlers need of `grpc.aio.ServicerContext`.

    Args:
        queue: Has accepted it.
        event: Has brought it.
    """

    __slots__ = (
        "_began_ns",
        "_call",
        "_callbacks",
        "_deadline",
        "_ended",
        "_left",
        "_metadata",
        "_queue",
        "_reading",
        "_request",
        "_started",
        "_task",
    )

    def __init__(self, queue: AcceptQueue, event: Any) -> None:
        self._queue = queue
        self._call = event.call
        self._metadata = event.invocation_metadata
        self._deadline: float = event.call_details.deadline
        self._began_ns = time.perf_counter_ns()
        self._request: bytes | None = None
        self._reading: weakref.ref[Callable[[Any], None]] | None = None
        """The tag of the request, while it is waited for."""
        self._callbacks: list[Callable[[Any], object]] = []
        self._task: asyncio.Task[None] | None = None
        self._started = False
        self._ended = False
        """Its status has been sent."""
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
        """Wait for the request, unless a guard rejects the call."""
        self._call.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(0),), self._close)
        for guard in self._queue.guards:
            rejection = guard.rejection(self._queue.method, self._metadata)
            if rejection is not None:
                self._queue.hand_over(partial(self._deny, guard, rejection))
                return
        tag = self._receive
        self._reading = weakref.ref(tag)
        self._queue.reader.begin(self._fail_read)
        self._call.start_server_batch((cygrpc.ReceiveMessageOperation(0),), tag)

    def _receive(self, event: Any) -> None:
        self._reading = None
        self._queue.reader.finish(self._fail_read)
        self._request = event.batch_operations[0].message()
        self._queue.hand_over(self._start)

    def end_if_lost(self) -> None:
        """Answer the call if its request was read, and is lost."""
        if self._reading is not None and self._reading() is None:
            self._reading = None
            self._queue.reader.finish(self._fail_read)
            self._queue.hand_over(partial(self._fail_read, MemoryError()))

    def _close(self, event: Any) -> None:
        self._queue.forget(self)
        if event.batch_operations[0].cancelled():
            self._left = True
            self._queue.hand_over(self._cancel)

    def _sent(self, _event: Any) -> None:
        self._queue.hand_over(self._call_back)

    # ---- On the event loop -------------------------------------------------------------------------

    def _deny(self, guard: Guard, rejection: Rejection) -> None:
        guard.count(self._queue.method, rejection)
        self._send_status(*rejection)

    def _fail_read(self, error: Exception) -> None:
        """Answer a call whose request cannot be read, unless it has come or its caller has left."""
        if self._ended or self._left or self._request is not None:
            return
        self._queue.reader.count(error, self._began_ns)
        self._fail(error)

    def _start(self) -> None:
        request, self._request = self._request, None
        if self._ended or self._left:
            return
        if request is None:
            self._fail(InvalidRequestError(EMPTY_CALL))
            return
        self._queue.running.add(self)
        self._task = self._queue.loop.create_task(self._run(request))

    async def _run(self, request: bytes) -> None:
        self._started = True
        try:
            if self._left:
                return
            answer = self._queue.answer(request, self)
            del request  # the handler holds it as long as it needs it
            reply = await answer
            self._send(
                cygrpc.SendInitialMetadataOperation((), 0),
                cygrpc.SendMessageOperation(reply, 0),
                cygrpc.SendStatusFromServerOperation((), cygrpc.StatusCode.ok, b"", 0),
            )
        except grpc.aio.AbortError:
            pass
        except Exception as error:
            self._fail(error)
        finally:
            self._task = None  # its error may refer to this call
            self._queue.running.discard(self)
            if not self._ended:  # it was cancelled
                self._end()

    def _cancel(self) -> None:
        if self._started and not self._ended and self._task is not None:
            self._task.cancel()

    def _fail(self, error: Exception) -> None:
        reply: ErrorReply = reject(self, error)
        self._send_status(reply.code, reply.message, reply.trailers)

    def _send_status(self, code: grpc.StatusCode, details: str, trailers: Any = ()) -> None:
        self._send(
            cygrpc.SendInitialMetadataOperation((), 0),
            cygrpc.SendStatusFromServerOperation(tuple(trailers), code.value[0], details, 0),
        )

    def _send(self, *operations: Any) -> None:
        """Send what ends the call. Only the first time counts."""
        if self._ended:
            return
        if self._left or self._queue.closed:
            self._end()
            return
        self._ended = True
        try:
            if error := self._call.start_server_batch(operations, self._sent if self._callbacks else _ignore):
                raise RuntimeError(f"gRPC does not take the answer: error {error}")
        except Exception:
            LOGGER.exception("a call cannot be answered")
            self._end()

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


async def unusable_reason() -> str | None:
    """Return why calls cannot be accepted in this way here; None if they can.

    A server of its own, which only this machine can reach, answers a call and rejects another.
    """
    check = asyncio.ensure_future(_check())
    await asyncio.wait((check,), timeout=_CHECK_SECONDS)
    if not check.done():
        check.cancel()
        await asyncio.wait((check,), timeout=_END_SECONDS)  # no longer: what hangs may never end
        return f"two calls took longer than {_CHECK_SECONDS:g} s"
    if error := check.exception():
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


async def _check() -> None:
    method = "/polyhead.Check/Echo"

    async def echo(request: bytes, context: CallContext) -> bytes:
        remaining = context.time_remaining()
        metadata = tuple(map(tuple, context.invocation_metadata()))
        if remaining is None or not 0 < remaining < 2 * _CHECK_SECONDS or ("key", "value") not in metadata:
            await context.abort(grpc.StatusCode.ABORTED, request.decode(), (("key", "value"),))
        return request

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    queue = AcceptQueue(
        server, method, echo, guards=(), reader=RequestReader(Settings(models=Path()), Statistics())
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    queue.start()
    try:
        options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
            reply = await call(b"request", timeout=_CHECK_SECONDS, metadata=(("key", "value"),))
            if reply != b"request":
                raise RuntimeError(f"the reply must be the request, was {reply!r}")
            try:
                await call(b"details")
            except grpc.aio.AioRpcError as error:
                status = error.code(), error.details(), tuple(map(tuple, error.trailing_metadata()))
                expected = grpc.StatusCode.ABORTED, "details", (("key", "value"),)
                if status != expected:
                    raise RuntimeError(f"the status must be {expected}, was {status}") from error
            else:
                raise RuntimeError("the call must be rejected, and was not")
    finally:
        await queue.stop(0)
    if queue.calls or not queue.closed:
        raise RuntimeError(f"every call must end, {len(queue.calls)} have not")
