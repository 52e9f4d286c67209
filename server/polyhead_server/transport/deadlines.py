"""How long a request may take: as its caller's deadline says, or as ours where that is nearer."""

import asyncio
import math
from typing import Any

import grpc

# What is late is refused by whatever it waits for; only a reader who stands still has to be cut off.
_GRACE_SECONDS = 1.0


class Patience:
    """Ends requests that take longer than they may.

    Args:
        seconds: The longest that one may take, whatever its own deadline.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    @staticmethod
    def ends(context: grpc.aio.ServicerContext[Any, Any]) -> float:
        """When a call's own deadline is, in the event loop's time. Infinite where it has none.

        To be asked when the call comes: gRPC tells it by the clock on the wall, which may be set meanwhile.
        """
        now = asyncio.get_running_loop().time()  # first, so that it is never later than gRPC's own
        remaining = context.time_remaining()
        return math.inf if remaining is None else now + remaining

    def deadline(self, ends: float) -> float:
        """By when a request that comes now must have its reply, of a call that `ends` then."""
        return min(ends, asyncio.get_running_loop().time() + self._seconds)

    @staticmethod
    def cut_off(deadline: float) -> asyncio.TimerHandle:
        """Cancels the task that calls this, soon after a deadline; the caller cancels that in time."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can be cut off")
        return loop.call_at(deadline + _GRACE_SECONDS, task.cancel)
