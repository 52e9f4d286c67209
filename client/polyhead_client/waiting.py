"""The calls that wait for a request that they share, and what each form of them costs.

Shape letters: B batch, T tokens.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from numpy.typing import NDArray

from polyhead_client.batch import Batch
from polyhead_client.calls import Deadline, Join
from polyhead_client.errors import Cancelled, PolyheadError
from polyhead_client.reply import Results, unpadded, unpadded_tokens
from polyhead_client.request import EncodeTemplate, reply_bytes

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

_ALL = slice(None)


@dataclass(eq=False, slots=True)
class Sender:
    """An operation in the background that sends a joined request."""

    at_once: bool
    """Whether it is sent however many are under way."""
    callers: int = 0
    """The callers that wait for it."""
    cancel: Callable[[], None] | None = None
    """Cancels the operation."""


class Waits(Protocol):
    """Starts what a call that waits needs."""

    def enter(self, entry: "WaitingCall", wake: Callable[[], None]) -> None:
        """Let a call wait to be joined."""

    def send_overdue(self, entry: "WaitingCall") -> None:
        """Send a call that has waited for long, with others or alone."""


@dataclass(eq=False, slots=True)
class WaitingCall(Join):
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

    """

    waits: Waits
    queue: "CallQueue"
    template: EncodeTemplate
    batch: Batch
    deadline: Deadline
    has_slot: bool = False
    """Whether its own request has a slot."""
    is_waiting: bool = False
    """Whether no request has taken it yet."""
    sender: Sender | None = None
    """The sender of the joined request that has taken it."""
    joined: tuple[Results, int] | None = None
    """The result of that request, and the index of the call's first row in it."""
    error: PolyheadError | None = None
    """The error of that request."""
    wake: Callable[[], None] = field(init=False)
    """Wakes the caller."""

    @property
    def patience(self) -> float:
        """Half of the time that is left, at most."""
        remaining = self.deadline.remaining()
        if remaining is None or remaining > 2 * _PATIENCE_SECONDS:
            return _PATIENCE_SECONDS
        return remaining / 2

    def enter(self, wake: Callable[[], None]) -> None:
        """Begin to wait."""
        self.waits.enter(self, wake)

    def overdue(self) -> None:
        """Ask to be sent soon."""
        self.waits.send_overdue(self)

    def leave(self) -> PolyheadError | None:
        """End the wait."""
        return self.queue.leave(self)

    def most(self, width: int) -> int:
        """Return how many sequences of this form the server takes while the messages remain small."""
        info, requested, largest = self.template.info, self.template.requested, _LARGEST_MESSAGE
        if not self.batch.width or (requested.queries is not None and self.batch.tokens is None):
            return 0  # padding would make an empty sequence, or an invalid query, a valid one
        tokens = width
        if self.batch.tokens is None:  # at most a token for each byte, and up to four around texts
            tokens = min(width + 4, info.max_tokens or width + 4)
        request = self.batch.row_bytes * width // self.batch.width
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
        batch, rows = self.batch, slice(start, start + self.batch.size)
        lengths = _copied(whole.lengths[rows]) if batch.lengths is None else batch.lengths
        own: dict[str, NDArray[Any]] = {}
        for output in self.template.requested.outputs:
            if (array := whole.arrays.get(output.name)) is not None:
                own[output.name] = _trimmed(array[rows], output.token_axes, batch.tokens)
        arrays = dict(unpadded(own, self.template.requested, batch, lengths))
        for name, array in arrays.items():
            arrays[name] = list(map(_copied, array)) if isinstance(array, list) else _copied(array)
        return Results(
            model=whole.model,
            version=whole.version,
            arrays=arrays,
            tokens=whole.tokens
            and unpadded_tokens([list(row[: batch.tokens]) for row in whole.tokens[rows]], batch, lengths),
            lengths=lengths,
            heads=whole.heads,
            timings=whole.timings,
        )


class CallQueue:
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
        self._waiting: list[WaitingCall] = []
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

    def goes_ahead(self, entry: WaitingCall) -> bool:
        """Return whether to send a call at once: it is not small, or nothing is under way.

        After a joined request, its callers are likely to call again together. So the first of them goes with
        a sender, too, which starts when they have.
        """
        if self._seconds is None or entry.batch.units * self._seconds > _LONGEST_SECONDS / 2:
            return True
        with self._lock:
            if not self.under_way and not self._joins:
                self.under_way += 1
                self._calls += 1
                entry.has_slot = True
                return True
        return self._most_for(entry, entry.batch.width) < 2 * entry.batch.size

    def enter(self, entry: WaitingCall, wake: Callable[[], None]) -> bool:
        """Add a call; return whether to start a sender, for which a slot was taken."""
        with self._lock:
            entry.sender = entry.joined = entry.error = None
            entry.wake = wake
            entry.is_waiting = True
            self._waiting.append(entry)
            self._units += entry.batch.units
            return self._take_slot()

    def release(self, calls: int) -> bool:
        """Release a slot; return whether to start a sender, for which a slot was taken."""
        with self._lock:
            self.under_way -= 1
            self._calls -= calls
            return bool(self._waiting) and self._take_slot()

    def take(self, sender: Sender) -> list[WaitingCall]:
        """Take the calls of the next request, the oldest first; none if the sender is to end.

        A single call also takes over the sender's slot.
        """
        with self._lock:
            self._starting -= 1
            spare = sender.at_once or self.under_way <= _MAX_UNDER_WAY or self._is_full(1)
            if not self._waiting or not spare:
                return []
            head, *others = self._waiting
            taken, size, width = [head], head.batch.size, head.batch.width
            # The requests under way share the calls, so that the server always has one.
            most = -(-(self._calls + len(self._waiting)) // _MAX_UNDER_WAY)
            seconds = self._seconds or 0.0  # of a unit
            for entry in others:
                if len(taken) == most:
                    break
                joined_size, joined_width = size + entry.batch.size, max(width, entry.batch.width)
                units = joined_size * joined_width
                padding = units - size * width - entry.batch.units
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

    def is_overdue(self, entry: WaitingCall) -> bool:
        """Return whether to start a sender at once for a call, for which a slot was taken."""
        with self._lock:
            if entry.is_waiting:
                self._waiting.remove(entry)
                self._waiting.insert(0, entry)
                self.under_way += 1
                self._starting += 1
            return entry.is_waiting

    def finish(
        self, entries: Sequence[WaitingCall], results: Results | None, error: PolyheadError | None
    ) -> None:
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
                start += entry.batch.size
        for entry in entries:
            entry.wake()

    def leave(self, entry: WaitingCall) -> PolyheadError | None:
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

    def _most_for(self, entry: WaitingCall, width: int) -> int:
        """Return the most sequences of a request with this call, padded to a width."""
        if (most := self._most.get(width)) is None:
            most = self._most[width] = entry.most(width)
        return most

    def _is_full(self, requests: int) -> bool:
        """Return whether so many requests could not hold more than waits."""
        return self._units * (self._seconds or 0.0) >= requests * _LONGEST_SECONDS

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

    def _remove(self, entry: WaitingCall) -> None:
        self._waiting.remove(entry)
        self._units -= entry.batch.units
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
