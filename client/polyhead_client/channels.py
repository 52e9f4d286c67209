"""Several channels to one target: as many as the calls in flight need."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from itertools import count
from threading import Lock
from typing import Any

import grpc

CALLS_PER_CHANNEL = 32
"""Calls in flight on one channel before another is opened: the streams that a polyhead server allows on a
connection by default. It has room for others that have just ended, as it counts those longer than its client.
gRPC makes calls beyond them wait in the client."""

MOST_CHANNELS = 32
"""Calls beyond the room of these share them, and may wait."""

MOST_TO_SEVERAL = 4
"""The same where a target stands for several servers: each channel connects to all of them."""

_WORKING = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE)

_Ended = Callable[[object], None]
"""Called with the code of a call that has ended; None where it is not known."""


class _Channel:
    """An open channel, its methods, and the room for calls on it."""

    def __init__(self, channel: Any, room: int) -> None:
        self.channel = channel
        self.room: deque[None] = deque([None] * room)
        self.failed = False
        """Whether its last call ended UNAVAILABLE. Calls of `grpc.aio` tell that only to who awaits them."""
        self.method = cache(lambda kind, path: getattr(channel, kind)(path))
        """Returns the channel's `unary_unary`, or another kind of method, of a procedure."""

    def rank(self) -> tuple[bool, bool, int]:
        """Return what is least for the channel to choose: has room, then works, then has the fewest calls."""
        broken = self.failed
        if isinstance(self.channel, grpc.aio.Channel):
            broken = self.channel.get_state() not in _WORKING
        return not self.room, broken, -len(self.room)

    def ended(self, code: object) -> None:
        """Note how a call has ended, and give back its room."""
        self.failed = code is grpc.StatusCode.UNAVAILABLE
        self.room.append(None)


class Channels:
    """Stand for one channel, synchronous or of `grpc.aio`, and open further ones while calls find no room.

    Safe to share between threads. A call takes and gives back room without a lock, because gRPC's threads and
    gevent's greenlets do so, too.

    Args:
        open_one: Opens a channel that shares its connection with no other.
        room: Calls in flight on one channel.
        several: Whether a channel connects to several servers.
    """

    def __init__(self, open_one: Callable[[], Any], *, room: int, several: bool = False) -> None:
        self._open_one = open_one
        self._room = room
        self._several = several
        self._channels = [_Channel(open_one(), room)]
        self._turns = count()
        self._lock = Lock()
        self._closed = False

    def unary_unary(self, path: str) -> "Method":
        """Return a procedure with one request and one reply."""
        return Method(self._take, "unary_unary", path)

    def stream_stream(self, path: str) -> "Method":
        """Return a procedure with a stream of requests and one of replies."""
        return Method(self._take, "stream_stream", path)

    def close(self) -> list[Any]:
        """Close all channels, and open no more; return what each gave, for `grpc.aio` to be awaited."""
        with self._lock:
            self._closed = True
        return [one.channel.close() for one in self._channels]

    def _take(self) -> tuple[_Channel, _Ended]:
        """Return a channel for a call, and what to do when the call has ended."""
        most = MOST_TO_SEVERAL if self._several else MOST_CHANNELS
        while True:
            first, *others = self._channels
            one = min(self._channels, key=_Channel.rank) if others else first
            with suppress(IndexError):  # it is full, or others were quicker
                one.room.pop()
                return one, one.ended
            with self._lock:
                if self._closed or len(self._channels) == most:
                    return self._channels[next(self._turns) % len(self._channels)], lambda _: None
                if not any(one.room for one in self._channels):
                    self._channels.append(_Channel(self._open_one(), self._room))


class Method:
    """Call a procedure on a channel that has room.

    Args:
        take: Returns the channel, and what to do when the call has ended.
        kind: The channel's method, such as `unary_unary`.
        path: The procedure's full name.
    """

    def __init__(self, take: Callable[[], tuple[_Channel, _Ended]], kind: str, path: str) -> None:
        self._take = take
        self._kind = kind
        self._path = path

        self.future = partial(self, how="future")
        """Returns a call that has begun, of a synchronous channel."""

    def __call__(self, *arguments: Any, how: str = "__call__", **options: Any) -> Any:
        """Call as the channel's method does: return a call, or where that waits, the reply's bytes."""
        channel, ended = self._take()
        try:
            begun = getattr(channel.method(self._kind, self._path), how)(*arguments, **options)
        except BaseException as error:
            ended(error.code() if isinstance(error, grpc.Call) else None)
            raise
        if isinstance(begun, bytes):
            ended(grpc.StatusCode.OK)
        elif isinstance(begun, grpc.aio.Call):
            begun.add_done_callback(lambda _: ended(None))
        else:
            begun.add_done_callback(lambda call: ended(call.code()))
        return begun
