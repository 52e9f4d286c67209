"""What each inference request took, and how it ended: for statistics, the log and traces."""

import time
from asyncio import CancelledError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from polyhead_proto.names import TIMINGS
from polyhead_server.errors import ExpiredError
from polyhead_server.inference.templates import Plan
from polyhead_server.observability.request_log import CURRENT
from polyhead_server.serving.registry import Model

# A caller's deadline counts from when it sent the request, so that it leaves a little early by our clock.
_CLOCKS_DIFFER_SECONDS = 0.02


@dataclass(kw_only=True, slots=True)
class Ran:
    """A request that has been computed, and how long that took."""

    plan: Plan
    batch: int
    tokenise_ns: int | None
    content: dict[str, NDArray[Any] | bytes]
    """Every output by its name."""
    started_ns: int
    parse_ns: int
    input_ns: int
    queue_ns: int
    compute_ns: int

    def timings(self, output_ns: int) -> Mapping[str, int]:
        """What the reply says about time."""
        values = (self.parse_ns, self.tokenise_ns, self.queue_ns, self.compute_ns, output_ns)
        return {name: value for name, value in zip(TIMINGS, values, strict=True) if value is not None}


@contextmanager
def failures(model: Model, started_ns: int, deadline: float) -> Iterator[None]:
    """Counts a request that gets no reply.

    At its deadline gRPC cancels a request that has not ended by itself; that is no caller who left.
    """
    try:
        yield
    except BaseException as error:
        ended: BaseException = error
        if (
            isinstance(error, CancelledError | GeneratorExit)
            and time.monotonic() >= deadline - _CLOCKS_DIFFER_SECONDS
        ):
            ended = ExpiredError()
        model.statistics.failed(total_ns=time.perf_counter_ns() - started_ns, error=ended)
        if (record := CURRENT.get()) is not None:
            record.reached(model.signature.name, model.signature.version)
        raise


def succeeded(model: Model, ran: Ran, output_ns: int) -> None:
    """Counts a request that gets its reply."""
    total_ns = time.perf_counter_ns() - ran.started_ns
    model.statistics.succeeded(
        batch=ran.batch,
        total_ns=total_ns,
        parse_ns=ran.parse_ns,
        tokenise_ns=ran.tokenise_ns,
        input_ns=ran.input_ns,
        queue_ns=ran.queue_ns,
        compute_ns=ran.compute_ns,
        serialise_ns=output_ns,
    )
    if (record := CURRENT.get()) is not None:
        record.reached(model.signature.name, model.signature.version)
        record.batch = ran.batch
        record.stages = {"parse": (0, ran.parse_ns)}
        if ran.tokenise_ns is not None:
            record.stages["tokenise"] = (ran.parse_ns, ran.tokenise_ns)
        record.stages["queue"] = (ran.input_ns, ran.queue_ns)
        record.stages["compute"] = (ran.input_ns + ran.queue_ns, ran.compute_ns)
        record.stages["serialise"] = (total_ns - output_ns, output_ns)
