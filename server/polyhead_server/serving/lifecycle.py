"""Where the server stands: loading, serving, draining; and how many requests it has accepted."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from polyhead_server.errors import UnavailableError
from polyhead_server.observability.counter_layout import DRAINING, IN_FLIGHT
from polyhead_server.serving.registry import Registry

# By then the port is closed, or another server has it.
_DRAINING_RETRY_MS = 1000


class Lifecycle:
    """The server's readiness and its accepted requests. Lives on the event loop.

    The server is ready when loading is over, at least one model is ready, and it is not draining. A family
    that could not be loaded does not take readiness from the others; its own entries in the index and in
    health say so.

    Args:
        registry: The models.
        on_change: Called when readiness may have changed.
    """

    def __init__(self, registry: Registry, on_change: Callable[[], None] = lambda: None) -> None:
        self.on_change = on_change
        self.draining = asyncio.Event()
        self.lost = asyncio.Event()
        """The device failed for good: this process cannot answer any more."""
        self._registry = registry
        self._statistics = registry.unattributed
        self._loaded = False
        self._accepted = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def ready(self) -> bool:
        """New requests are answered."""
        return self._loaded and not self.draining.is_set() and bool(self._registry.models())

    @property
    def accepted(self) -> int:
        """Requests that have no answer yet."""
        return self._accepted

    def loaded(self) -> None:
        """Loading is over."""
        self._loaded = True
        self.on_change()

    def lose_device(self) -> None:
        """The device is of no use to this process any more: accepts nothing from now on."""
        self.lost.set()
        self.drain()

    def drain(self) -> None:
        """Accepts nothing from now on."""
        self.draining.set()
        self.on_change()

    async def idle(self) -> None:
        """Waits until every accepted request has its answer."""
        await self._idle.wait()

    @staticmethod
    def refuse() -> UnavailableError:
        """What new requests are told while the server drains."""
        return UnavailableError("the server is draining: try another one", retry_after_ms=_DRAINING_RETRY_MS)

    @contextmanager
    def accept(self) -> Iterator[None]:
        """Accepts a request for the time it takes.

        Raises:
            UnavailableError: The server is draining.
        """
        if self.draining.is_set():
            refused = self.refuse()
            self._statistics.on_drop(DRAINING)
            self._statistics.failed(total_ns=0, error=refused)
            raise refused
        self._accepted += 1
        self._statistics.page[IN_FLIGHT] = self._accepted
        self._idle.clear()
        try:
            yield
        finally:
            self._accepted -= 1
            self._statistics.page[IN_FLIGHT] = self._accepted
            if not self._accepted:
                self._idle.set()
