"""Counters of one version of a model. Every request runs this code, so it is written for speed."""

import time
from bisect import bisect_left
from contextvars import ContextVar

from polyhead_server.errors import status_of
from polyhead_server.observability import counter_slots as slots
from polyhead_server.observability.observer import Drop, Execution
from polyhead_server.observability.shared_counters import SharedCounters

_TIME_BOUNDS = slots.REQUEST.bounds
_HISTOGRAMS = (slots.REQUEST, slots.PARSE, slots.TOKENISE, slots.QUEUE, slots.COMPUTE, slots.SERIALISE)
_TIMES = [(histogram.first, histogram.sum) for histogram in _HISTOGRAMS]
_OK = {protocol: codes["OK"] for protocol, codes in slots.CODE.items()}

PROTOCOL: ContextVar[str] = ContextVar("protocol", default=slots.GRPC)
"""How the request came that this task answers."""


class Statistics:
    """Count what happens to one version of a model. Used on the event loop only.

    Args:
        counters: Holds the page; None creates counters that only this object uses.
        name: The model.
        version: Its version.
    """

    def __init__(self, counters: SharedCounters | None = None, name: str = "", version: int = 0) -> None:
        self.page = (counters or SharedCounters.create()).page(name, version)

    def succeeded(
        self,
        *,
        batch: int,
        total_ns: int,
        parse_ns: int,
        tokenise_ns: int | None,
        input_ns: int,
        queue_ns: int,
        compute_ns: int,
        serialise_ns: int,
    ) -> None:
        """Count an answered request of `batch` sequences."""
        page = self.page
        times = (total_ns, parse_ns, tokenise_ns, queue_ns, compute_ns, serialise_ns)
        for (first, total), ns in zip(_TIMES, times, strict=True):
            if ns is not None:
                page[first + bisect_left(_TIME_BOUNDS, ns)] += 1
                page[total] += ns
        page[slots.INPUT_NS] += input_ns
        page[slots.SEQUENCES] += batch
        page[slots.LAST_INFERENCE_MS] = time.time_ns() // 1_000_000
        page[_OK[PROTOCOL.get()]] += 1

    def failed(self, *, total_ns: int, error: BaseException) -> None:
        """Count a request that was rejected, failed, cancelled or late."""
        self.page[slots.FAILED] += 1
        self.page[slots.FAILED_NS] += total_ns
        self.page[slots.CODE[PROTOCOL.get()][status_of(error).name]] += 1

    def rejected(self, code: str) -> None:
        """Count a request that was rejected unread, by its status."""
        self.page[slots.FAILED] += 1
        self.page[slots.CODE[PROTOCOL.get()][code]] += 1

    def on_execution(self, execution: Execution) -> None:
        """Count a run of the engine."""
        page = self.page
        page[slots.BATCH.first + bisect_left(slots.BATCH.bounds, execution.sequences)] += 1
        page[slots.BATCH.sum] += execution.sequences
        page[slots.TOKENS] += execution.tokens
        page[slots.PADDED_TOKENS] += execution.padded_tokens
        row = slots.batch_row(execution.sequences)
        page[row] += 1
        page[row + 1] += execution.input_ns
        page[row + 2] += execution.compute_ns
        page[row + 3] += execution.output_ns

    def on_drop(self, reason: Drop) -> None:
        """Count work that ended without a result."""
        self.page[slots.DROP[reason]] += 1
