"""The state of a server: loading, ready or draining, how many requests it has accepted, and its gauges."""

import asyncio
from collections.abc import Callable

from polyhead_server.errors import DrainingError
from polyhead_server.observability.statistics import Drop
from polyhead_server.serving.budget import Budget
from polyhead_server.serving.registry import Lease, Registry

_SAMPLE_SECONDS = 0.5


class Lifecycle:
    """Track readiness and accepted requests. Lives on the event loop.

    The server is ready when loading has finished, at least one model is ready, and it does not drain. A
    family that could not be loaded does not make the others unready; its own entries in the index and in
    health say so.

    Args:
        registry: The models.
        budget: The memory of requests and replies.
        on_change: Called when readiness may have changed.
    """

    def __init__(self, registry: Registry, budget: Budget, on_change: Callable[[], None]) -> None:
        self.draining = asyncio.Event()
        """Nothing new is accepted."""
        self.lost = asyncio.Event()
        """The device failed for good: this process cannot answer any more."""
        self._on_change = on_change
        self._registry = registry
        self._budget = budget
        self._loaded = False
        self._requests = Lease()
        self._idle = asyncio.Event()
        self._shown: set[tuple[str, int]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ready(self) -> bool:
        """Whether new requests are answered."""
        return self._loaded and not self.draining.is_set() and bool(self._registry.models())

    def finish_loading(self) -> None:
        """Become ready, if there is a model."""
        self._loaded = True
        self._on_change()

    def lose_device(self) -> None:
        """Accept nothing from now on: the device is of no use to this process any more."""
        self.lost.set()
        self.drain()

    def drain(self) -> None:
        """Accept nothing from now on."""
        self.draining.set()
        self._on_change()

    @property
    def accepted(self) -> int:
        """The number of requests that are not answered yet."""
        return self._requests.users

    async def wait_until_idle(self) -> None:
        """Wait, once nothing new is accepted, until every accepted request is answered."""
        self._requests.end(self._idle.set)
        await self._idle.wait()

    def accept(self) -> Lease:
        """Count a request as accepted for the duration of a `with` block.

        Raises:
            DrainingError: Nothing new is accepted.
        """
        if self.draining.is_set():
            error = DrainingError()
            self._registry.unattributed.on_drop(Drop.DRAINING)
            self._registry.unattributed.failed(total_ns=0, error=error)
            raise error
        return self._requests

    # ---- Gauges ------------------------------------------------------------------------------------

    def show(self) -> None:
        """Show in metrics which models are ready, and where they run."""
        metrics = self._registry.metrics
        metrics.ready_workers.set(self.ready)
        models = {(slot.name, slot.version): slot.model for slot in self._registry.slots()}
        for key, model in models.items():
            metrics.model_ready.labels(*key).set(model is not None)
            if model is not None:
                metrics.model_info.labels(*key, model.device.provider).set(1)
        for key in self._shown - models.keys():
            metrics.forget(*key)
        self._shown = {*models}

    def sample(self) -> None:
        """Show in metrics how much is queued, in flight and held, now and every half second."""
        for model in self._registry.models():
            model.statistics.queued(model.scheduler.queued_requests, model.scheduler.queued_tokens)
        self._registry.metrics.in_flight.set(self.accepted)
        self._registry.metrics.held_bytes.set(self._budget.bytes)
        self._timer = asyncio.get_running_loop().call_later(_SAMPLE_SECONDS, self.sample)

    def stop_sampling(self) -> None:
        """Sample no more."""
        if self._timer is not None:
            self._timer.cancel()
