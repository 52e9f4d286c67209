"""Counts what happens to one version of a model. What a request costs here, every request pays."""

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyhead_server.errors import status_of
from polyhead_server.observability import counter_layout as at
from polyhead_server.observability.shared_counters import SharedCounters

if TYPE_CHECKING:
    from polyhead_server.scheduling.observer import Execution

_TIME_BOUNDS = at.REQUEST.bounds
_REQUEST, _REQUEST_SUM = at.REQUEST.first, at.REQUEST.sum
_PARSE, _PARSE_SUM = at.PARSE.first, at.PARSE.sum
_TOKENISE, _TOKENISE_SUM = at.TOKENISE.first, at.TOKENISE.sum
_QUEUE, _QUEUE_SUM = at.QUEUE.first, at.QUEUE.sum
_COMPUTE, _COMPUTE_SUM = at.COMPUTE.first, at.COMPUTE.sum
_SERIALISE, _SERIALISE_SUM = at.SERIALISE.first, at.SERIALISE.sum
_OK = at.CODE["OK"]


class Statistics:
    """One version's counters, written on the event loop only.

    Args:
        counters: Where they stand; None is nowhere that anybody else could see.
        name: The model's.
        version: Its version.
    """

    def __init__(self, counters: SharedCounters | None = None, name: str = "", version: int = 0) -> None:
        self._counters = counters or SharedCounters.create()
        self._key = (name, version)
        self.page = self._counters.page(name, version)

    def totals(self) -> Sequence[int]:
        """The numbers of all workers together, as `layout` names their places."""
        return self._counters.total(*self._key)

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
        """Counts an answered request of `batch` sequences."""
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
        page[at.INPUT_NS] += input_ns
        page[at.SEQUENCES] += batch
        page[at.LAST_INFERENCE_MS] = time.time_ns() // 1_000_000
        page[_OK] += 1

    def failed(self, *, total_ns: int, error: BaseException) -> None:
        """Counts a request that was refused, failed, cancelled or late."""
        self.page[at.FAILED] += 1
        self.page[at.FAILED_NS] += total_ns
        self.page[at.CODE[status_of(error).name]] += 1

    def refused(self, code: str) -> None:
        """Counts a request that was refused unread, by its status."""
        self.page[at.FAILED] += 1
        self.page[at.CODE[code]] += 1

    def on_execution(self, execution: "Execution") -> None:
        """Counts a run of the engine."""
        page = self.page
        page[at.BATCH.first + bisect_left(at.BATCH.bounds, execution.sequences)] += 1
        page[at.BATCH.sum] += execution.sequences
        page[at.TOKENS] += execution.tokens
        page[at.PADDED_TOKENS] += execution.padded_tokens
        row = at.batch_row(execution.sequences)
        page[row] += 1
        page[row + 1] += execution.input_ns
        page[row + 2] += execution.compute_ns
        page[row + 3] += execution.output_ns

    def on_drop(self, reason: str) -> None:
        """Counts work that ended without a result."""
        self.page[at.DROP[reason]] += 1
