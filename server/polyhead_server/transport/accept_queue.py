"""Accept the calls of methods on a completion queue of our own, inside a `grpc.aio` server.

`grpc.aio` accepts one call for each turn of the event loop, and reads one message of a stream, so that few
requests are known at a time and batches stay small; and it puts large messages together on the event loop,
which stands still meanwhile. Here many accepts are outstanding. A thread polls the queue and reads the
requests; the event loop gets whole ones, all that have come at once. While it answers unary calls, the thread
waits, because the two would only take the interpreter's lock from each other. Streams do not wait: each of
their replies is sent when the thread hears that the one before has gone. `grpc.aio` listens, and rejects
unknown methods.

The modules that import `cygrpc` use private names of grpcio, those on which its threaded server is built.
`grpcio_check` tries them out.
"""

import asyncio
import gc
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock, Semaphore, Thread
from typing import Any, TypeAlias

import grpc

from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.statistics import Statistics
from polyhead_server.transport.accepted_call import AcceptedCall
from polyhead_server.transport.access import Guard
from polyhead_server.transport.cygrpc import cygrpc

MakeCall: TypeAlias = Callable[["AcceptQueue", str, Any], AcceptedCall]
"""Makes the call that an event has brought, of its queue and its method."""

Step: TypeAlias = tuple[AcceptedCall, Callable[[], None]]
"""A call, and what the event loop is to do for it."""

ACCEPTS = 64
"""Accepts of each method that are outstanding. Further calls wait in gRPC for the polling thread."""

MAX_CALLS = 16_384
"""Calls that are open at once. Further ones wait in gRPC, as they do where nothing accepts them."""

_STEPS_PER_TURN = 64
"""Calls or requests that start in one turn of the event loop, so that other work gets its turn."""

_TURNS_TO_ANSWER = 3
"""Turns of the event loop until small requests are answered: tasks start, work runs, replies are sent."""

_END_SECONDS = 5.0


class AcceptQueue:
    """Answer the calls of methods with coroutines of the event loop.

    Create it before the server starts, and start it after.

    Args:
        server: The server that listens.
        methods: Make the calls of each method, by its full name, such as `/package.Service/Method`.
        guard: Rejects calls before their requests are read.
        statistics: Counts inferences that are rejected, or whose requests cannot be read.

    Raises:
        Exception: This grpcio lacks what is needed.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        methods: Mapping[str, MakeCall],
        *,
        guard: Guard,
        statistics: Statistics,
    ) -> None:
        self.guard = guard
        self.statistics = statistics
        self.loop = asyncio.get_running_loop()
        self.calls: set[AcceptedCall] = set()
        """The open calls. Only the polling thread changes it."""
        self.running: set[AcceptedCall] = set()
        """The calls that are being answered. Only the event loop changes it."""
        self.closed = False
        """Nothing may be sent any more: gRPC would abort the process."""
        self._methods = methods
        self._server = server
        inside: Any = server
        self._core = next(one for one in gc.get_referents(inside._server) if isinstance(one, cygrpc.Server))
        self._completions = cygrpc.CompletionQueue()
        for method in methods:
            self._core.register_method(method)
        self._core.register_completion_queue(self._completions)
        self._thread = Thread(target=self._poll, name="accept", daemon=True)
        self._arrived: list[Step] = []
        """Steps for the event loop. Only the polling thread changes it."""
        self._waits = False
        self._go_on = Semaphore(0)
        # A tag for each outstanding accept, until its call is known. Nothing but gRPC holds it, so that it is
        # gone from here, too, if its event is lost.
        self._tags: weakref.WeakSet[partial[None]] = weakref.WeakSet()
        self._withheld: deque[str] = deque()  # first in, first out, so that no method starves
        """The methods of accepts that wait until calls have ended."""
        self._stopping = False
        self._lock = Lock()
        self._idle = asyncio.Event()

    def start(self) -> None:
        """Accept calls. The server has started."""
        self._add_accepts()
        self._thread.start()

    def stop_accepting(self) -> None:
        """Ask for no more calls, as all queues must before their server stops: an accept must find it."""
        with self._lock:
            self._stopping = True

    async def stop(self, grace: float) -> None:
        """Stop the server and this queue.

        Args:
            grace: Seconds that calls may take to end. Then they are cancelled.
        """
        self.stop_accepting()
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
            self._go_on.release()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    # ---- In the polling thread ---------------------------------------------------------------------

    def _poll(self) -> None:
        """Take events until the queue is shut down and empty.

        | steps arrived    | the queue        | then
        | ---------------- | ---------------- | --------------------------------------------------------
        | none             | has no event     | wait for one
        | any              | has an event     | call its tag, which may add steps; at 64, wake the loop
        | some             | has no event     | wake the loop
        | none             | is shut down     | end
        | any              | loses an event   | find out whose it was
        """
        while True:
            try:
                event = self._completions.poll(0 if self._arrived else None)
                if event.tag is not None:
                    event.tag(event)
                elif not self._arrived:
                    return
                if event.tag is None or len(self._arrived) >= _STEPS_PER_TURN:
                    self._wake_loop()
                failed = False
            except Exception as error:
                failed = True
                if not isinstance(error, MemoryError):
                    LOGGER.exception("accepting a call failed")
            event = None  # it may hold a large request, and the next may be long in coming
            if failed:  # here, where no traceback holds a tag any more
                self._recover()
            if self._stopping:
                self._tell_if_idle()

    def _wake_loop(self) -> None:
        """Let the event loop take all steps. Wait until it has answered the small calls among them."""
        waits = self._waits
        try:
            self.loop.call_soon_threadsafe(self._take_steps, self._arrived, waits)
        except RuntimeError:  # it has been closed
            waits = False
        self._arrived, self._waits = [], False
        if waits and not self.closed:
            self._go_on.acquire()

    def _recover(self) -> None:
        """Find out what is lost with an event. One that does not fit into memory takes its tag along."""
        while True:
            try:
                for call in self.calls.copy():
                    call.end_if_lost()
                self._add_accepts()
            except MemoryError:
                continue
            except Exception:
                LOGGER.exception("accepting a call failed")  # calls still count for more
            return

    def _add_accepts(self) -> None:
        for method in self._methods:
            known = self._withheld.count(method) + sum(tag.args == (method,) for tag in self._tags)
            for _ in range(ACCEPTS - known):
                self._add_accept(method)

    def _add_accept(self, method: str) -> None:
        """Ask gRPC for a call."""
        if len(self.calls) >= MAX_CALLS and not self._stopping:
            self._withheld.append(method)
            return
        tag = partial(self._accept, method)
        with self._lock, suppress(ValueError):  # the server has been stopped
            if not self._stopping:
                self._core.request_registered_call(self._completions, self._completions, method, tag)
                self._tags.add(tag)

    def _accept(self, method: str, event: Any) -> None:
        """Take the call that has come, and ask for another."""
        try:
            if event.success:  # else the server stops
                call = self._methods[method](self, method, event)
                self.calls.add(call)
                try:
                    call.open()
                except BaseException:
                    self.calls.discard(call)
                    event.call.cancel()
                    raise
        finally:
            # Not before it is known as a call, for `_tell_if_idle`. The traceback of an error may hold it.
            self._tags.discard(event.tag)
            if event.success:
                self._add_accept(method)

    def forget(self, call: AcceptedCall) -> None:
        """Forget a call that has ended."""
        self.calls.discard(call)
        if self._withheld:
            self._add_accept(self._withheld.popleft())

    def hand_over(self, call: AcceptedCall, step: Callable[[], None], *, waits: bool = False) -> None:
        """Let the event loop take a step of a call, after those before it.

        Args:
            call: It fails if the step does.
            step: What to call.
            waits: Whether the polling thread waits meanwhile.
        """
        self._arrived.append((call, step))
        self._waits |= waits

    def _tell_if_idle(self) -> None:
        if not self._tags and not self.calls:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._idle.set)

    # ---- On the event loop -------------------------------------------------------------------------

    def _take_steps(self, steps: Sequence[Step], waits: bool) -> None:
        try:
            for call, step in steps:
                try:
                    step()
                except Exception as error:
                    _fail(call, error)
        finally:
            if waits:
                self._let_go_on(_TURNS_TO_ANSWER)

    def _let_go_on(self, turns: int) -> None:
        """Let the polling thread go on after some turns of the event loop."""
        if turns:
            self.loop.call_soon(self._let_go_on, turns - 1)
        else:
            self._go_on.release()


def _fail(call: AcceptedCall, error: Exception) -> None:
    try:
        call.fail(error)
    except Exception:
        LOGGER.exception("a step of a call failed")
