"""Join concurrent calls of `encode` into one request.

A request costs the client and the server more than a small sequence does. So while requests of a form are
under way, further calls of that form wait, and the next request takes them along. No call waits for company:
nothing waits while nothing is under way.

Shape letters: B batch, T tokens.
"""

import copy
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from polyhead_client.calls import Join, Operation
from polyhead_client.deadline import Deadline, latest
from polyhead_client.errors import AccessDenied, Cancelled, NotFound, PolyheadError, Unavailable, Unsupported
from polyhead_client.inputs import Batch, join
from polyhead_client.padding import Arrays
from polyhead_client.reply import Unpadder
from polyhead_client.request import EncodeTemplate, reply_bytes
from polyhead_client.results import Results

_MAX_UNDER_WAY = 2
"""Requests of a form under way, beyond which calls wait: the server computes one while the callers of the
other get their results and call again."""

_LONGEST_SECONDS = 0.004
"""The longest computation of a joined request. By then, everything else that a request costs is a few per
cent, and the server, which never divides a request, schedules several better than one."""

_PATIENCE_SECONDS = 0.1
"""The longest time for which a call waits to be sent, because the requests under way may be stuck."""

_PADDING_SECONDS = 0.0002
"""The longest computation on padding that a call may cause by joining: what its own request would cost."""

_LARGEST_MESSAGE = 1 << 20
"""The estimated size in bytes up to which requests and replies are joined."""

_FORGETTING = 1 / 1024
"""The weight of a run that was slower than those before. The fastest runs show what a form costs: a run may
also hold other requests, or share its core."""

_MAX_QUEUES = 256

_ALL = slice(None)

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
        self._queues: dict[Hashable, _Queue] = {}
        self._closed = False

    def encode(self, template: EncodeTemplate, batch: Batch, deadline: Deadline) -> Operation[Results]:
        """Encode a batch, together with other calls of its form while requests are under way.

        Raises:
            PolyheadError: The call failed.
        """
        queue = self._queue(_form(template, batch))
        entry = _Entry(self, queue, template, batch, deadline)
        try:
            if not queue.goes_ahead(entry):
                yield entry
                if entry.joined is not None:
                    return entry.results(*entry.joined)
            results = yield from self._send(template, batch, deadline)
            queue.learn(results, entry.size, entry.width)
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

    def enter(self, entry: "_Entry", wake: Callable[[], None]) -> None:
        """Let a call wait to be joined."""
        if entry.queue.enter(entry, wake):
            self._start_sender(entry.queue)
        if self._closed:
            entry.queue.cancel()

    def send_overdue(self, entry: "_Entry") -> None:
        """Send a call that has waited for long, with others or alone."""
        if entry.queue.is_overdue(entry):
            self._start_sender(entry.queue, at_once=True)

    def _queue(self, form: Hashable) -> "_Queue":
        if (queue := self._queues.get(form)) is None:
            with self._lock:
                if len(self._queues) >= _MAX_QUEUES:  # what they have learned is soon learned again
                    self._queues = {key: kept for key, kept in self._queues.items() if kept.under_way}
                queue = self._queues.setdefault(form, _Queue())
        return queue

    def _go_on(self, queue: "_Queue", *, calls: int = 0) -> None:
        """Release a slot, which goes to the calls that wait."""
        if queue.release(calls):
            self._start_sender(queue)

    def _start_sender(self, queue: "_Queue", *, at_once: bool = False) -> None:
        sender = _Sender(at_once=at_once)
        try:
            sender.cancel = self._start(self._send_joined(queue, sender))
        except RuntimeError:  # the client was closed, or no thread can be started
            queue.abandon()

    def _send_joined(self, queue: "_Queue", sender: "_Sender") -> Operation[None]:
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

    def _send_together(self, queue: "_Queue", entries: Sequence["_Entry"]) -> Operation[None]:
        results: Results | None = None
        error: PolyheadError | None = None
        try:
            batch = join([entry.batch for entry in entries])
            deadline = latest(entry.deadline for entry in entries)
            results = yield from self._send(entries[0].template, batch, deadline, stream=False)
            queue.learn(results, batch.size, max(entry.width for entry in entries))
        except _SHARED_ERRORS as shared:
            error = shared
        except PolyheadError:
            pass  # one of them may be the cause
        finally:
            queue.finish(entries, results, error)


class _Sender:
    """An operation in the background that sends a joined request.

    Attributes:
        at_once: Whether it is sent however many are under way.
        callers: The callers that wait for it.
        cancel: Cancels the operation.
    """

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once
        self.callers = 0
        self.cancel: Callable[[], None] | None = None


def _form(template: EncodeTemplate, batch: Batch) -> Hashable:
    """Return what calls must have in common to be joined."""
    requested = template.requested
    width = None
    if requested.queries is not None and not requested.rows:
        width = batch.text_bytes if batch.tokens is None else batch.tokens  # decides whether a query is valid
    return template, width, batch.signature


class _Entry(Join):
    """One call: its batch, its wait for a joined request, and how that ended.

    | the call | event                                      | then it
    | -------- | ------------------------------------------ | -------------------------------------------
    | begins   | it is large, or nothing is under way       | sends its own request
    | begins   | otherwise                                  | waits
    | waits    | a sender takes it alone                    | sends its own request, in the sender's slot
    | waits    | a sender takes it with others              | is joined
    | waits    | its patience is over                       | waits first, and a sender starts at once
    | waits    | no sender can be started                   | sends its own request, without a slot
    | waits    | the client is closed                       | fails
    | joined   | the request succeeds                       | has its rows of the results
    | joined   | the request fails, as each of them would   | fails, with a copy of the error
    | joined   | the request fails otherwise                | sends its own request
    | any      | its deadline passes, or it is cancelled    | leaves; the last to leave cancels the request

    Attributes:
        queue: The calls of its form.
        size: B.
        width: T; for texts, the bytes of the longest, because only the server knows their tokens.
        units: The cost of its own request, in tokens or bytes of text.
        has_slot: Whether its own request has a slot.
        is_waiting: Whether no request has taken it yet.
        sender: The sender of the joined request that has taken it.
        joined: The result of that request, and the index of the call's first row in it.
        error: The error of that request.
        wake: Wakes the caller.
    """

    __slots__ = (
        "_coalescer",
        "batch",
        "error",
        "has_slot",
        "is_waiting",
        "joined",
        "queue",
        "sender",
        "size",
        "template",
        "units",
        "wake",
        "width",
    )

    def __init__(
        self,
        coalescer: Coalescer,
        queue: "_Queue",
        template: EncodeTemplate,
        batch: Batch,
        deadline: Deadline,
    ) -> None:
        super().__init__(deadline)
        self._coalescer = coalescer
        self.queue = queue
        self.template = template
        self.batch = batch
        self.size = batch.size
        tokens = batch.tokens
        self.width = batch.text_bytes if tokens is None else tokens
        self.units = self.size * self.width
        self.has_slot = False
        self.is_waiting = False
        self.sender: _Sender | None = None
        self.joined: tuple[Results, int] | None = None
        self.error: PolyheadError | None = None
        self.wake: Callable[[], None]

    @property
    def patience(self) -> float:
        remaining = self.deadline.remaining()
        if remaining is None or remaining > 2 * _PATIENCE_SECONDS:
            return _PATIENCE_SECONDS
        return remaining / 2

    def enter(self, wake: Callable[[], None]) -> None:
        self._coalescer.enter(self, wake)

    def overdue(self) -> None:
        self._coalescer.send_overdue(self)

    def leave(self) -> PolyheadError | None:
        return self.queue.leave(self)

    def most(self, width: int) -> int:
        """Return how many sequences of this form the server takes while the messages remain small."""
        info, requested, largest = self.template.info, self.template.requested, _LARGEST_MESSAGE
        if not self.width or (requested.queries is not None and self.batch.tokens is None):
            return 0  # padding would make an empty sequence, or an invalid query, a valid one
        tokens = width
        if self.batch.tokens is None:  # at most a token for each byte, and up to four around texts
            tokens = min(width + 4, info.max_tokens or width + 4)
        request = self.batch.row_bytes * width // self.width
        reply = requested.sequence_bytes(tokens, self.batch.memory_tokens or 0)
        rest = reply_bytes(requested, size=0, tokens=tokens)
        limits = (
            (info.max_batch_size, 1),
            (info.max_request_tokens, max(tokens, self.batch.memory_tokens or 0)),
            (min(largest, info.max_request_bytes or largest), request),
            (min(largest, info.max_reply_bytes or largest) - rest, reply),
        )
        return min(limit // (each or 1) for limit, each in limits if limit is not None)

    def results(self, whole: Results, start: int) -> Results:
        """Return its rows of joined results, in the form of its inputs.

        They are copies. A view would keep the rows of all callers in memory.
        """
        batch, rows = self.batch, slice(start, start + self.size)
        lengths = _copied(whole.lengths[rows]) if batch.lengths is None else batch.lengths
        unpadder = Unpadder(batch, lengths)
        own: dict[str, Arrays] = {}
        for output in self.template.requested.outputs:
            if (array := whole.arrays.get(output.name)) is not None:
                arrays = unpadder.output(_trimmed(array[rows], output.token_axes, batch.tokens), output)
                own[output.name] = list(map(_copied, arrays)) if isinstance(arrays, list) else _copied(arrays)
        return Results(
            model=whole.model,
            version=whole.version,
            arrays=own,
            tokens=whole.tokens
            and unpadder.tokens([list(row[: batch.tokens]) for row in whole.tokens[rows]]),
            lengths=lengths,
            heads=whole.heads,
            timings=whole.timings,
        )


class _Queue:
    """The calls of one form that wait, and the requests under way. Threads may share it.

    Attributes:
        under_way: The slots that are taken, by requests and senders.
    """

    def __init__(self) -> None:
        self.under_way = 0
        self._lock = Lock()
        self._calls = 0  # in the requests under way
        self._starting = 0  # senders that have not begun
        self._joins = False  # whether the latest request held several calls
        self._waiting: list[_Entry] = []
        self._units = 0  # tokens, or bytes of text, that wait
        self._seconds: float | None = None  # to compute a unit
        self._most: dict[int, int] = {}  # sequences of a request, by width

    def learn(self, results: Results, size: int, width: int) -> None:
        """Learn what a form costs from the result for `size` sequences."""
        nanoseconds = results.timings.get("compute_ns")
        if nanoseconds is None or not size * width:
            return
        seconds = nanoseconds / 1e9 / (size * width)
        known = self._seconds
        self._seconds = seconds if known is None else min(seconds, known + _FORGETTING * (seconds - known))

    def goes_ahead(self, entry: _Entry) -> bool:
        """Return whether to send a call at once: it is not small, or nothing is under way.

        After a joined request, its callers are likely to call again together. So the first of them goes with
        a sender, too, which starts when they have.
        """
        if self._seconds is None or self._cost(entry.units) > _LONGEST_SECONDS / 2:
            return True
        with self._lock:
            if not self.under_way and not self._joins:
                self.under_way += 1
                self._calls += 1
                entry.has_slot = True
                return True
        return self._most_for(entry, entry.width) < 2 * entry.size

    def enter(self, entry: _Entry, wake: Callable[[], None]) -> bool:
        """Add a call; return whether to start a sender, for which a slot was taken."""
        with self._lock:
            entry.sender = entry.joined = entry.error = None
            entry.wake = wake
            entry.is_waiting = True
            self._waiting.append(entry)
            self._units += entry.units
            return self._take_slot()

    def release(self, calls: int) -> bool:
        """Release a slot; return whether to start a sender, for which a slot was taken."""
        with self._lock:
            self.under_way -= 1
            self._calls -= calls
            return bool(self._waiting) and self._take_slot()

    def take(self, sender: _Sender) -> list[_Entry]:
        """Take the calls of the next request, the oldest first; none if the sender is to end.

        A single call also takes over the sender's slot.
        """
        with self._lock:
            self._starting -= 1
            spare = sender.at_once or self.under_way <= _MAX_UNDER_WAY or self._is_full(1)
            if not self._waiting or not spare:
                return []
            head, *others = self._waiting
            taken, size, width = [head], head.size, head.width
            # The requests under way share the calls, so that the server always has one.
            most = -(-(self._calls + len(self._waiting)) // _MAX_UNDER_WAY)
            seconds = self._seconds or 0.0  # of a unit
            for entry in others:
                if len(taken) == most:
                    break
                joined_size, joined_width = size + entry.size, max(width, entry.width)
                units = joined_size * joined_width
                padding = units - size * width - entry.units
                if (
                    units * seconds <= _LONGEST_SECONDS
                    and padding * seconds <= _PADDING_SECONDS
                    and joined_size <= self._most_for(head, joined_width)
                ):
                    taken.append(entry)
                    size, width = joined_size, joined_width
            for entry in taken:
                self._remove(entry)
                entry.sender = sender if len(taken) > 1 else None
            self._joins = len(taken) > 1
            head.has_slot = not self._joins
            self._calls += len(taken)
            sender.callers = len(taken)
            return taken

    def is_overdue(self, entry: _Entry) -> bool:
        """Return whether to start a sender at once for a call, for which a slot was taken."""
        with self._lock:
            if entry.is_waiting:
                self._waiting.remove(entry)
                self._waiting.insert(0, entry)
                self.under_way += 1
                self._starting += 1
            return entry.is_waiting

    def finish(self, entries: Sequence[_Entry], results: Results | None, error: PolyheadError | None) -> None:
        """Wake the callers of a request: with its result, its error, or to be sent alone."""
        start = 0
        with self._lock:
            self._calls -= len(entries)
            for entry in entries:
                entry.sender = None
                if results is not None:
                    entry.joined = (results, start)
                elif error is not None:
                    entry.error = _own_copy(error)
                start += entry.size
        for entry in entries:
            entry.wake()

    def leave(self, entry: _Entry) -> PolyheadError | None:
        """End the wait of a call, whatever ended it; return the error of its request.

        A request that all its callers have left is cancelled.
        """
        with self._lock:
            if entry.is_waiting:
                self._remove(entry)
            sender, entry.sender = entry.sender, None
            if sender is not None:
                sender.callers -= 1
        if sender is not None and not sender.callers and sender.cancel is not None:
            sender.cancel()
        return entry.error

    def abandon(self) -> None:
        """Give up a sender that cannot start: every call that waits is sent alone."""
        with self._lock:
            self.under_way -= 1
            self._starting -= 1
            entries = list(self._waiting)
            for entry in entries:
                self._remove(entry)
        for entry in entries:
            entry.wake()

    def cancel(self) -> None:
        """Cancel the calls that wait."""
        with self._lock:
            entries = list(self._waiting)
            for entry in entries:
                self._remove(entry)
                entry.error = Cancelled.by_close()
        for entry in entries:
            entry.wake()

    def _cost(self, units: int) -> float:
        """Return the seconds to compute so many units."""
        return units * (self._seconds or 0.0)

    def _most_for(self, entry: _Entry, width: int) -> int:
        """Return the most sequences of a request with this call, padded to a width."""
        if (most := self._most.get(width)) is None:
            most = self._most[width] = entry.most(width)
        return most

    def _is_full(self, requests: int) -> bool:
        """Return whether so many requests could not hold more than waits."""
        return self._cost(self._units) >= requests * _LONGEST_SECONDS

    def _take_slot(self) -> bool:
        """Take a slot for a sender, unless it is better to wait for a request under way.

        That is while none is free, or while few calls wait: after a small request beside a large one, both
        are to share the calls again. But as much as a request can hold does not wait.
        """
        few = 2 * len(self._waiting) < self._calls
        if (few or self.under_way >= _MAX_UNDER_WAY) and not self._is_full(self._starting + 1):
            return False
        self.under_way += 1
        self._starting += 1
        return True

    def _remove(self, entry: _Entry) -> None:
        self._waiting.remove(entry)
        self._units -= entry.units
        entry.is_waiting = False


def _trimmed(array: NDArray[Any], axes: Sequence[int], tokens: int | None) -> NDArray[Any]:
    """Remove the padding that calls with more tokens have caused.

    Args:
        array: [B, ...].
        axes: Its axes of T, counted without B.
        tokens: T without that padding; None where the server counts the tokens.
    """
    if tokens is None or not axes or array.shape[axes[0] + 1] == tokens:
        return array
    index = [_ALL] * array.ndim
    for axis in axes:
        index[axis + 1] = slice(tokens)
    return array[tuple(index)]


def _copied(array: NDArray[Any]) -> NDArray[Any]:
    """Copy an array; the copy is as read-only as the array."""
    own = array.copy()
    own.setflags(write=array.flags.writeable)
    return own


def _own_copy(error: PolyheadError) -> PolyheadError:
    """Copy an error, because each caller raises its own."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own
