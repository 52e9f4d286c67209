"""How things stand now, written beside the counters: what is ready, where it runs, how much waits."""

import asyncio

from polyhead_server.observability.counter_layout import (
    HELD_BYTES,
    PROVIDER,
    QUEUED_TOKENS,
    READY,
    SERVING,
    encode_provider,
)
from polyhead_server.serving.budget import Budget
from polyhead_server.serving.lifecycle import Lifecycle
from polyhead_server.serving.registry import Registry

_SAMPLE_SECONDS = 0.5


class Gauges:
    """Keeps the gauges of a registry's models up to date. Lives on the event loop.

    Args:
        registry: The models.
        budget: What is held for callers.
        lifecycle: Says whether the server is ready.
    """

    def __init__(self, registry: Registry, budget: Budget, lifecycle: Lifecycle) -> None:
        self._registry = registry
        self._lifecycle = lifecycle
        self._budget = budget
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """Writes down what is ready."""
        counters = self._registry.counters
        self._registry.unattributed.page[SERVING] = int(self._lifecycle.ready)
        ready = {(slot.name, slot.version): slot.model for slot in self._registry.slots()}
        for key in {*ready, *counters.mine}:
            page, model = counters.page(*key), ready.get(key)
            page[READY] = int(model is not None)
            if model is not None:
                page[PROVIDER] = encode_provider(model.provider)

    def sample(self) -> None:
        """Writes down how much waits, now and every half second."""
        for model in self._registry.models():
            model.statistics.page[QUEUED_TOKENS] = model.scheduler.queued_tokens
        self._registry.unattributed.page[HELD_BYTES] = self._budget.bytes
        self._timer = asyncio.get_running_loop().call_later(_SAMPLE_SECONDS, self.sample)

    def stop(self) -> None:
        """Samples no more."""
        if self._timer is not None:
            self._timer.cancel()
