"""What is recorded of one inference request."""

import time
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class RequestRecord:
    """Describe one inference request. All times are in nanoseconds."""

    request_id: str
    model: str = ""
    version: int = 0
    code: str = "OK"
    message: str = ""
    """The error message, where it failed."""
    started_ns: int = field(default_factory=time.time_ns)
    """Since the epoch."""
    began_ns: int = field(default_factory=time.perf_counter_ns)
    """The same by the monotonic clock."""
    ended_ns: int = 0
    """Since the epoch, measured by the monotonic clock."""
    batch: int = 0
    stages: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Parse, tokenise, queue, compute, serialise: offset from the start, and duration."""

    def end(self) -> None:
        """Note that the request has ended."""
        self.ended_ns = self.started_ns + time.perf_counter_ns() - self.began_ns

    @property
    def seconds(self) -> float:
        """The duration."""
        return (self.ended_ns - self.started_ns) / 1e9


CURRENT: ContextVar[RequestRecord | None] = ContextVar("record", default=None)
"""The record of the request that this task answers, where one is kept."""
