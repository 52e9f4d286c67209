"""Count what happens to one version of a model. Every request runs this code, so it is written for speed."""

import time
from contextvars import ContextVar
from functools import cache, partial

from polyhead_server.errors import status_of
from polyhead_server.observability import metrics
from polyhead_server.observability.observer import Drop, Execution

GRPC, HTTP = "grpc", "http"
PROTOCOL: ContextVar[str] = ContextVar("protocol", default=GRPC)
"""How the request came that this task answers."""

_EXACT_BATCHES = 256
"""Larger batches are counted as the next power of two."""

_TIMES = (
    *(metrics.REQUEST_SECONDS, metrics.PARSE_SECONDS, metrics.TOKENISE_SECONDS),
    *(metrics.QUEUE_SECONDS, metrics.COMPUTE_SECONDS, metrics.SERIALISE_SECONDS),
)
_STAGES = ("input", "infer", "output")


class Statistics:
    """Count what happens to one version of a model.

    Args:
        name: The model; empty where requests end before their model is known: they only fail.
        version: Its version.
    """

    def __init__(self, name: str = "", version: int | str = "") -> None:
        labels = self._labels = name, str(version)
        self._requests = cache(partial(metrics.REQUESTS.labels, *labels))
        self._drops = cache(partial(metrics.DROPS.labels, *labels))
        self._failed_seconds = metrics.FAILED_SECONDS.labels(*labels)
        if name:
            self._requests(GRPC, "OK")  # shows from the beginning
            self._times = tuple(metric.labels(*labels) for metric in _TIMES)
            self._sequences = metrics.SEQUENCES.labels(*labels)
            self._batch_sequences = metrics.BATCH_SEQUENCES.labels(*labels)
            self._tokens = metrics.TOKENS.labels(*labels)
            self._padded_tokens = metrics.PADDED_TOKENS.labels(*labels)
            self._last_run = metrics.LAST_RUN.labels(*labels)
            self._runs = cache(partial(metrics.RUNS.labels, *labels))
            self._run_seconds = cache(partial(metrics.RUN_SECONDS.labels, *labels))
            self._queued_requests = metrics.QUEUED_REQUESTS.labels(*labels)
            self._queued_tokens = metrics.QUEUED_TOKENS.labels(*labels)

    def succeeded(
        self,
        *,
        batch: int,
        total_ns: int,
        parse_ns: int,
        tokenise_ns: int | None,
        queue_ns: int,
        compute_ns: int,
        serialise_ns: int,
    ) -> None:
        """Count an answered request of `batch` sequences."""
        times = (total_ns, parse_ns, tokenise_ns, queue_ns, compute_ns, serialise_ns)
        for metric, ns in zip(self._times, times, strict=True):
            if ns is not None:
                metric.observe(ns / 1e9)
        self._sequences.inc(batch)
        self._requests(PROTOCOL.get(), "OK").inc()

    def failed(self, *, total_ns: int, error: BaseException) -> None:
        """Count a request that was rejected, failed, cancelled or late."""
        self._failed_seconds.inc(total_ns / 1e9)
        self.rejected(status_of(error).name)

    def rejected(self, code: str) -> None:
        """Count a request that was rejected unread, by its status."""
        self._requests(PROTOCOL.get(), code).inc()

    def on_execution(self, execution: Execution) -> None:
        """Count a run of the engine."""
        self._batch_sequences.observe(execution.sequences)
        self._tokens.inc(execution.tokens)
        self._padded_tokens.inc(execution.padded_tokens)
        self._last_run.set(time.time())
        size = execution.sequences
        if size > _EXACT_BATCHES:
            size = 1 << (size - 1).bit_length()
        self._runs(size).inc()
        for stage, ns in zip(
            _STAGES, (execution.input_ns, execution.compute_ns, execution.output_ns), strict=True
        ):
            self._run_seconds(size, stage).inc(ns / 1e9)

    def on_drop(self, reason: Drop) -> None:
        """Count work that ended without a result."""
        self._drops(reason).inc()

    def queued(self, requests: int, tokens: int) -> None:
        """Show how much waits."""
        self._queued_requests.set(requests)
        self._queued_tokens.set(tokens)
