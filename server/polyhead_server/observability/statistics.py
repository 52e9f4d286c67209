"""What happens to the requests and the work of one version of a model, and what counts it."""

import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache, partial
from typing import Protocol

from prometheus_client import Counter

from polyhead_server.errors import status_of
from polyhead_server.observability.metrics import Metrics

GRPC, HTTP = "grpc", "http"
PROTOCOL: ContextVar[str] = ContextVar("protocol", default=GRPC)
"""How the request came that this task answers."""

_EXACT_BATCHES = 256
"""Larger batches are counted as the next power of two."""


class Drop(StrEnum):
    """Why work ended without a result, other than by a failure of the engine."""

    QUEUE_FULL = "queue_full"
    """Rejected: too many tokens wait."""
    UNREACHABLE = "unreachable"
    """Rejected: its deadline would pass before it could run."""
    STOPPING = "stopping"
    """Rejected: the model is being closed."""
    TIMEOUT = "timeout"
    """It waited longer than its `timeout` or than the server's limit."""
    EXPIRED = "expired"
    """The caller's deadline passed, in the queue or during the run."""
    CANCELLED = "cancelled"
    """The caller left, in the queue or during the run."""
    DRAINING = "draining"
    """Rejected before it was scheduled: the server drains."""
    LOADING = "loading"
    """Rejected likewise: the model is being loaded."""
    MEMORY = "memory"
    """Rejected likewise: too much is held in memory."""


@dataclass(kw_only=True, slots=True)
class Execution:
    """One run of the engine."""

    sequences: int
    """B of the run."""
    requests: int
    tokens: int
    """Tokens without padding."""
    padded_tokens: int
    """What layers computed: with padding, or in packed graphs without. That of attention does not count."""
    input_ns: int
    """The time to join the requests."""
    compute_ns: int
    output_ns: int
    """The time to split the outputs."""


class Observer(Protocol):
    """Count what a scheduler does; `Statistics` does."""

    def on_execution(self, execution: Execution) -> None:
        """Count a run that did not fail."""

    def on_drop(self, reason: Drop) -> None:
        """Count work that ended without a result. Results, failures and drops add up to all submitted."""


class Statistics:
    """Count what happens to one version of a model.

    Args:
        name: The model; empty where requests end before their model is known: they only fail.
        version: Its version.
        metrics: Where it is counted; None counts for nobody.
    """

    def __init__(self, name: str = "", version: int | str = "", *, metrics: Metrics | None = None) -> None:
        metrics = metrics or Metrics()
        labels = name, str(version)
        self._requests = cache(partial(metrics.requests.labels, *labels))
        self._drops = cache(partial(metrics.drops.labels, *labels))
        self._failed_seconds = metrics.failed_seconds.labels(*labels)
        if name:
            self._requests(GRPC, "OK")  # shows from the beginning
            self._times = {name: metric.labels(*labels) for name, metric in metrics.times.items()}
            self._sequences = metrics.sequences.labels(*labels)
            self._batch_sequences = metrics.batch_sequences.labels(*labels)
            self._tokens = metrics.tokens.labels(*labels)
            self._padded_tokens = metrics.padded_tokens.labels(*labels)
            self._last_run = metrics.last_run.labels(*labels)
            self._of_size = lru_cache(maxsize=1024)(partial(_of_size, metrics, labels))
            self._queued_requests = metrics.queued_requests.labels(*labels)
            self._queued_tokens = metrics.queued_tokens.labels(*labels)

    def succeeded(self, batch: int, times_ns: Mapping[str, int]) -> None:
        """Count an answered request of so many sequences, given the times of `Metrics.times`."""
        for name, ns in times_ns.items():
            self._times[name].observe(ns / 1e9)
        self._sequences.inc(batch)
        self._requests(PROTOCOL.get(), "OK").inc()

    def failed(self, *, total_ns: int, error: BaseException) -> None:
        """Count a request that was rejected, failed, cancelled or late."""
        self._failed_seconds.inc(total_ns / 1e9)
        self._requests(PROTOCOL.get(), status_of(error).name).inc()

    def on_execution(self, execution: Execution) -> None:
        """Count a run of the engine."""
        self._batch_sequences.observe(execution.sequences)
        self._tokens.inc(execution.tokens)
        self._padded_tokens.inc(execution.padded_tokens)
        self._last_run.set(time.time())
        runs, input_seconds, compute_seconds, output_seconds = self._of_size(execution.sequences)
        runs.inc()
        input_seconds.inc(execution.input_ns / 1e9)
        compute_seconds.inc(execution.compute_ns / 1e9)
        output_seconds.inc(execution.output_ns / 1e9)

    def on_drop(self, reason: Drop) -> None:
        """Count work that ended without a result."""
        self._drops(reason).inc()

    def queued(self, requests: int, tokens: int) -> None:
        """Show how much waits."""
        self._queued_requests.set(requests)
        self._queued_tokens.set(tokens)


def _of_size(metrics: Metrics, labels: tuple[str, str], sequences: int) -> tuple[Counter, ...]:
    """Return what counts runs of one size: their number, and the time of their stages."""
    size = sequences if sequences <= _EXACT_BATCHES else 1 << (sequences - 1).bit_length()
    seconds = (metrics.run_seconds.labels(*labels, size, stage) for stage in ("input", "infer", "output"))
    return metrics.runs.labels(*labels, size), *seconds
