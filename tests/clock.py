"""An event loop on which a deadline passes when a test says so, and not when the machine stalls."""

import asyncio


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward."""

    _skipped = 0.0

    def time(self) -> float:
        return super().time() + self._skipped

    def skip(self, seconds: float) -> None:
        """Puts the clock forward. Call it on the event loop."""
        self._skipped += seconds


def skip(seconds: float) -> None:
    """Puts the clock of the running event loop forward."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    loop.skip(seconds)
