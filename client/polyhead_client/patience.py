"""Calling again, for as long as an operation may take, a server that is away, loading or full."""

import random
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from polyhead_client.calls import More, Operation, Pause, Together, Wanted
from polyhead_client.channel import RETRIED
from polyhead_client.errors import Cancelled, PolyheadError, Unavailable

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


def patiently(operation: Operation[T]) -> Operation[T]:
    """The same operation, whose calls are made again while the server is unavailable or calls them off.

    gRPC's own retries end within a second; a server that starts again takes longer. The error is passed on
    when the deadline leaves no time, or where the server says that it will not get better by itself.
    """
    step: Callable[[], Wanted] = partial(next, operation)
    try:
        while True:
            wanted = step()
            try:
                answer = yield from _answered(wanted)
            except PolyheadError as error:
                step = partial(operation.throw, error)
            else:
                step = partial(operation.send, answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        operation.close()


def _answered(wanted: Wanted) -> Operation[bytes]:
    # Probes are not made again ("no" is an answer there), nor is a stream of which something has come.
    # Operations that go together are patient each for itself.
    if isinstance(wanted, Pause | More | Together) or wanted.rpc.name not in RETRIED:
        return (yield wanted)
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return (yield wanted)
        except (Unavailable, Cancelled) as error:
            # Called off, but not by us: a server or a proxy had no room for it, and did not say so in words.
            asked = None if isinstance(error, Cancelled) else error.retry_after
            # A little apart: all callers of a server that went away have noticed at the same time.
            seconds = random.uniform(0.5, 1) * pause if asked is None else asked  # noqa: S311
            remaining = wanted.deadline.remaining()
            if seconds < 0 or (remaining is not None and remaining <= seconds):
                raise
        yield Pause(seconds=seconds)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
