"""Join concurrent calls of `encode` into one request.

A request costs the client and the server more than a small sequence does. So while requests of a form are
under way, further calls of that form wait, and the next request takes them along. No call waits for company:
nothing waits while nothing is under way.
"""

from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Protocol, TypeAlias

from polyhead_client.batch import Batch, join
from polyhead_client.calls import Deadline, Operation, latest
from polyhead_client.errors import AccessDenied, Cancelled, NotFound, PolyheadError, Unavailable, Unsupported
from polyhead_client.reply import Results
from polyhead_client.request import EncodeTemplate
from polyhead_client.waiting import CallQueue, Sender, WaitingCall

_MAX_QUEUES = 256

_SHARED_ERRORS = (Unavailable, Cancelled, AccessDenied, NotFound, Unsupported)
"""Errors that concern all calls in a request alike. After any other, each is sent alone."""


class Send(Protocol):
    """An operation that encodes a batch with one request."""

    def __call__(  # noqa: D102
        self, template: EncodeTemplate, batch: Batch, deadline: Deadline, *, stream: bool = True
    ) -> Operation[Results]: ...


Start: TypeAlias = Callable[[Operation[None]], Callable[[], None]]
"""Starts an operation in the background, from any thread; returns a function that cancels it."""


class Coalescer:
    """Joins the concurrent calls of one client. Threads may share it.

    Args:
        send: Sends a request.
        start: Starts an operation in the background.
    """

    def __init__(self, send: Send, start: Start) -> None:
        self._send = send
        self._start = start
        self._lock = Lock()
        self._queues: dict[Hashable, CallQueue] = {}
        self._closed = False

    def encode(self, template: EncodeTemplate, batch: Batch, deadline: Deadline) -> Operation[Results]:
        """Encode a batch, together with other calls of its form while requests are under way.

        Raises:
            PolyheadError: The call failed.
        """
        queue = self._queue(template, batch)
        entry = WaitingCall(self, queue, template, batch, deadline)
        try:
            if not queue.goes_ahead(entry):
                yield entry
                if entry.joined is not None:
                    return entry.results(*entry.joined)
            results = yield from self._send(template, batch, deadline)
            queue.learn(results, entry.batch.size, entry.batch.width)
            return results
        finally:
            if entry.has_slot:
                self._go_on(queue, calls=1)

    def close(self) -> None:
        """Cancel the calls that wait."""
        with self._lock:
            self._closed = True
            queues = list(self._queues.values())
        for queue in queues:
            queue.cancel()

    def enter(self, entry: WaitingCall, wake: Callable[[], None]) -> None:
        """Let a call wait to be joined."""
        if entry.queue.enter(entry, wake):
            self._start_sender(entry.queue)
        if self._closed:
            entry.queue.cancel()

    def send_overdue(self, entry: WaitingCall) -> None:
        """Send a call that has waited for long, with others or alone."""
        if entry.queue.is_overdue(entry):
            self._start_sender(entry.queue, at_once=True)

    def _queue(self, template: EncodeTemplate, batch: Batch) -> CallQueue:
        """Return the queue of calls of the same form, which can be joined."""
        form: Hashable = template, batch.signature
        if template.requested.queries is not None and not template.requested.rows:
            form = form, batch.width  # decides whether a query is valid
        if (queue := self._queues.get(form)) is None:
            with self._lock:
                if len(self._queues) >= _MAX_QUEUES:  # what they have learned is soon learned again
                    self._queues = {key: kept for key, kept in self._queues.items() if kept.under_way}
                queue = self._queues.setdefault(form, CallQueue())
        return queue

    def _go_on(self, queue: CallQueue, *, calls: int = 0) -> None:
        """Release a slot, which goes to the calls that wait."""
        if queue.release(calls):
            self._start_sender(queue)

    def _start_sender(self, queue: CallQueue, *, at_once: bool = False) -> None:
        sender = Sender(at_once)
        try:
            sender.cancel = self._start(self._send_joined(queue, sender))
        except RuntimeError:  # the client was closed, or no thread can be started
            queue.abandon()

    def _send_joined(self, queue: CallQueue, sender: Sender) -> Operation[None]:
        """Send a joined request.

        The next one has a sender of its own, which starts behind the callers of this one, so that it takes
        those along that call again.
        """
        has_slot = True
        try:
            entries = queue.take(sender)
            if len(entries) == 1:  # it sends its own request, and has the slot
                has_slot = False
                entries[0].wake()
            elif entries:
                yield from self._send_together(queue, entries)
        finally:
            if has_slot:
                self._go_on(queue)

    def _send_together(self, queue: CallQueue, entries: Sequence[WaitingCall]) -> Operation[None]:
        results: Results | None = None
        error: PolyheadError | None = None
        try:
            batch = join([entry.batch for entry in entries])
            deadline = latest(entry.deadline for entry in entries)
            results = yield from self._send(entries[0].template, batch, deadline, stream=False)
            queue.learn(results, batch.size, max(entry.batch.width for entry in entries))
        except _SHARED_ERRORS as shared:
            error = shared
        except PolyheadError:
            pass  # one of them may be the cause
        finally:
            queue.finish(entries, results, error)
