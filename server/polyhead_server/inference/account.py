"""Time one inference request, and count how it ended: for statistics, the log and traces."""

import time
from asyncio import CancelledError
from dataclasses import dataclass, field

from polyhead_proto.names import TIMINGS
from polyhead_server.errors import ExpiredError
from polyhead_server.inference.reply import SERIALISE
from polyhead_server.observability.access_log import CURRENT
from polyhead_server.observability.statistics import Statistics
from polyhead_server.serving.registry import Model

# A caller's deadline counts from when it sent the request, so that it cancels a little early by our clock.
_CLOCKS_DIFFER_SECONDS = 0.02


@dataclass(slots=True)
class RequestAccount:
    """The account of one request: entered when it arrives, left with its reply or its error."""

    unattributed: Statistics
    """Count the request if it ends before its model is known."""
    deadline: float
    """When the caller stops waiting, in the event loop's time."""
    model: Model | None = None
    batch: int = 0
    started_ns: int = field(default_factory=time.perf_counter_ns)
    parse_ns: int = 0
    tokenise_ns: int | None = None
    input_ns: int = 0
    """Until the request was handed to the scheduler; all others are durations of one step."""
    queue_ns: int = 0
    compute_ns: int = 0
    write_ns: int = 0

    @property
    def elapsed_ns(self) -> int:
        """The time since the request arrived."""
        return time.perf_counter_ns() - self.started_ns

    @property
    def timings(self) -> dict[str, int]:
        """The reply's parameters about time, without the time that writing it takes."""
        values = (self.parse_ns, self.tokenise_ns, self.queue_ns, self.compute_ns)
        return {name: value for name, value in zip(TIMINGS, values, strict=False) if value is not None}

    def __enter__(self) -> "RequestAccount":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        model, total_ns = self.model, self.elapsed_ns
        if error is not None:
            self._count_failure(error, model, total_ns)
        elif model is not None:
            times = self.timings | {SERIALISE: self.write_ns, "request_ns": total_ns}
            model.statistics.succeeded(self.batch, times)
        if model is None or (record := CURRENT.get()) is None:
            return
        record.model, record.version = model.signature.name, model.signature.version
        if error is None:
            record.batch = self.batch
            record.stages = {"parse": (0, self.parse_ns)}
            if self.tokenise_ns is not None:
                record.stages["tokenise"] = (self.parse_ns, self.tokenise_ns)
            record.stages["queue"] = (self.input_ns, self.queue_ns)
            record.stages["compute"] = (self.input_ns + self.queue_ns, self.compute_ns)
            record.stages["serialise"] = (total_ns - self.write_ns, self.write_ns)

    def _count_failure(self, error: BaseException, model: Model | None, total_ns: int) -> None:
        # At its deadline gRPC cancels a request that has not ended by itself; the caller has not left then.
        if (
            isinstance(error, CancelledError | GeneratorExit)
            and time.monotonic() >= self.deadline - _CLOCKS_DIFFER_SECONDS
        ):
            error = ExpiredError()
        statistics = self.unattributed if model is None else model.statistics
        statistics.failed(total_ns=total_ns, error=error)
