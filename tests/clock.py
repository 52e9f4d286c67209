"""An event loop whose deadlines pass when a test says so, and that drops late events of gRPC when closed."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

_Ts = TypeVarTuple("_Ts")


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward."""

    _skipped = 0.0

    def time(self) -> float:
        return super().time() + self._skipped

    def skip(self, seconds: float) -> None:
        """Puts the clock forward. Call it on the event loop."""
        self._skipped += seconds

    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Calls back; once closed, drops what gRPC reports late, from the loop of another test."""
        if self.is_closed():
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon_threadsafe(callback, *args, context=context)


def skip(seconds: float) -> None:
    """Puts the clock of the running event loop forward."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    loop.skip(seconds)
