"""Retry calls for as long as an operation's deadline allows, while the server is away, loading or full."""

import random
from typing import TypeVar

from polyhead_client.calls import Action, Call, Join, Operation, Sleep, Stream
from polyhead_client.channel import RETRIED
from polyhead_client.errors import Cancelled, PolyheadError, Unavailable

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


def retrying(operation: Operation[T]) -> Operation[T]:
    """Retry an operation's calls while the server is unavailable or cancels them.

    gRPC's own retries end within a second; a server takes longer to restart. The error is raised when the
    deadline leaves no time, or when the server says that a retry is of no use.
    """
    try:
        action = next(operation)
        while True:
            try:
                answer = yield from _attempt(action)
            except PolyheadError as error:
                action = operation.throw(error)
            else:
                action = operation.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        operation.close()


def _attempt(action: Action) -> Operation[bytes]:
    # Not retried: health probes, to which "no" is an answer; a stream that has begun; and a gather, each of
    # whose operations retries by itself.
    if not isinstance(action, Call | Join | Stream) or action.rpc.name not in RETRIED:
        return (yield action)
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return (yield action)
        except (Unavailable, Cancelled) as error:
            # Cancelled, but not by this client: a server or proxy had no room, without saying so.
            asked = None if isinstance(error, Cancelled) else error.retry_after
            # Jitter: all callers of a server notice at the same time that it went away.
            seconds = random.uniform(0.5, 1) * pause if asked is None else asked  # noqa: S311
            remaining = action.deadline.remaining()
            if seconds < 0 or (remaining is not None and remaining <= seconds):
                raise
        yield Sleep(seconds=seconds)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
