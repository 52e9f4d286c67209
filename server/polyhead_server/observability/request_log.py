"""What is known of one request when it ends: for the log's access lines, and for traces.

Nothing is kept of a request unless somebody wants to know: lines at level debug, or a tracer.
"""

import logging
import re
import time
import uuid
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc

from polyhead_proto.names import REQUEST_ID
from polyhead_server.observability.logs import LOGGER

Context = grpc.aio.ServicerContext[Any, Any]

_REQUEST_ID = re.compile(r"[!-~]{1,128}")


@dataclass(kw_only=True)
class Record:
    """One inference request. All times are in nanoseconds."""

    request_id: str
    model: str = ""
    version: int = 0
    code: str = "OK"
    message: str = ""
    """What the caller was told, where it failed."""
    started_ns: int = field(default_factory=time.time_ns)
    """Since the epoch."""
    began_ns: int = field(default_factory=time.perf_counter_ns)
    """The same by a clock that nobody sets."""
    ended_ns: int = 0
    """Since the epoch, counted from the start."""
    batch: int = 0
    stages: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Parse, tokenise, queue, compute, serialise: when it began, counted from the start, and what it took."""

    def reached(self, model: str, version: int) -> None:
        """The request's model was found."""
        self.model, self.version = model, version

    def end(self) -> None:
        """The request is answered."""
        self.ended_ns = self.started_ns + time.perf_counter_ns() - self.began_ns

    @property
    def seconds(self) -> float:
        """What it took."""
        return (self.ended_ns - self.started_ns) / 1e9


CURRENT: ContextVar[Record | None] = ContextVar("record", default=None)
"""The record of the request that this task answers, where one is kept."""


class Tracer(Protocol):
    """Writes traces."""

    def write(self, record: Record, metadata: Any) -> None:
        """Writes what became of a request that came with this metadata."""

    def close(self) -> None:
        """Sends what has not been sent."""


class Observation:
    """Keeps records for those who want them.

    Args:
        tracer: Where traces go; None where there are none.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer

    @property
    def wanted(self) -> bool:
        """Somebody wants to know."""
        return self._tracer is not None or LOGGER.isEnabledFor(logging.DEBUG)

    @contextmanager
    def request(self, context: Context) -> Iterator[None]:
        """Keeps the record of a request while it is answered, and tells it when that is done."""
        record = Record(request_id=request_id(context))
        token = CURRENT.set(record)
        try:
            yield
        except (CancelledError, GeneratorExit):
            record.code = "CANCELLED"
            raise
        finally:
            CURRENT.reset(token)
            record.end()
            _log(record)
            if self._tracer is not None:
                self._tracer.write(record, context.invocation_metadata())


def request_id(context: Context) -> str:
    """The caller's `x-request-id`, or a new one, which stays the same while the request is answered."""
    record = CURRENT.get()
    if record is not None:
        return record.request_id
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return uuid.uuid4().hex


def _log(record: Record) -> None:
    LOGGER.debug(
        "request %s %s %s %.3f ms%s",
        record.request_id,
        record.model or "-",
        record.code,
        record.seconds * 1e3,
        f": {record.message}" if record.message else "",
        extra={
            "request_id": record.request_id,
            "model": record.model,
            "version": record.version,
            "code": record.code,
            "seconds": record.seconds,
        },
    )
