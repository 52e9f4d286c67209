"""Counters of one version of a model. Every request runs this code, so it is written for speed."""

import time
from bisect import bisect_left
from contextvars import ContextVar
from typing import TYPE_CHECKING

from polyhead_server.errors import status_of
from polyhead_server.observability import counter_slots as slots
from polyhead_server.observability.shared_counters import SharedCounters

if TYPE_CHECKING:
    from polyhead_server.scheduling.observer import Execution

_TIME_BOUNDS = slots.REQUEST.bounds
_REQUEST, _REQUEST_SUM = slots.REQUEST.first, slots.REQUEST.sum
_PARSE, _PARSE_SUM = slots.PARSE.first, slots.PARSE.sum
_TOKENISE, _TOKENISE_SUM = slots.TOKENISE.first, slots.TOKENISE.sum
_QUEUE, _QUEUE_SUM = slots.QUEUE.first, slots.QUEUE.sum
_COMPUTE, _COMPUTE_SUM = slots.COMPUTE.first, slots.COMPUTE.sum
_SERIALISE, _SERIALISE_SUM = slots.SERIALISE.first, slots.SERIALISE.sum
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
        page[_REQUEST + bisect_left(_TIME_BOUNDS, total_ns)] += 1
        page[_REQUEST_SUM] += total_ns
        page[_PARSE + bisect_left(_TIME_BOUNDS, parse_ns)] += 1
        page[_PARSE_SUM] += parse_ns
        page[_QUEUE + bisect_left(_TIME_BOUNDS, queue_ns)] += 1
        page[_QUEUE_SUM] += queue_ns
        page[_COMPUTE + bisect_left(_TIME_BOUNDS, compute_ns)] += 1
        page[_COMPUTE_SUM] += compute_ns
        page[_SERIALISE + bisect_left(_TIME_BOUNDS, serialise_ns)] += 1
        page[_SERIALISE_SUM] += serialise_ns
        if tokenise_ns is not None:
            page[_TOKENISE + bisect_left(_TIME_BOUNDS, tokenise_ns)] += 1
            page[_TOKENISE_SUM] += tokenise_ns
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

    def on_execution(self, execution: "Execution") -> None:
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

    def on_drop(self, reason: str) -> None:
        """Count work that ended without a result."""
        self.page[slots.DROP[reason]] += 1
