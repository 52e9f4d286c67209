"""A record of each inference request, for the access lines of the log and for traces.

Records are kept only if they are used: for log lines at level debug, or for traces.
"""

import logging
import re
import time
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import grpc

from polyhead_proto.names import REQUEST_ID
from polyhead_server.errors import ErrorReply, error_reply
from polyhead_server.observability.logs import LOGGER

_REQUEST_ID = re.compile(r"[!-~]{1,128}")


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


class Context(Protocol):
    """What is recorded of a call."""

    def invocation_metadata(self) -> Any:
        """Return what the caller has sent with the call."""


class RequestLog:
    """Keep records while requests are answered, then log and trace them.

    Args:
        trace: Writes the trace of a request, with the metadata of its call; None writes none.
    """

    def __init__(self, trace: Callable[[RequestRecord, Any], None] | None = None) -> None:
        self._trace = trace

    def request(self, context: Context) -> AbstractContextManager[None]:
        """Keep the record of a request for a block and then write it, if anybody wants to have it."""
        is_wanted = self._trace is not None or LOGGER.isEnabledFor(logging.DEBUG)
        return self._recorded(context) if is_wanted else nullcontext()

    @contextmanager
    def _recorded(self, context: Context) -> Iterator[None]:
        record = RequestRecord(request_id=request_id(context))
        token = CURRENT.set(record)
        try:
            yield
        except (CancelledError, GeneratorExit):
            record.code = "CANCELLED"
            raise
        finally:
            CURRENT.reset(token)
            record.end()
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
            if self._trace is not None:
                self._trace(record, context.invocation_metadata())


def request_id(context: Context) -> str:
    """Return the caller's `x-request-id`, or a new one that stays the same while a record is kept."""
    record = CURRENT.get()
    if record is not None:
        return record.request_id
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return uuid.uuid4().hex


def logged_reply(error: Exception, request_id: str) -> ErrorReply:
    """Turn an error into what its caller gets. Log those that are the server's fault."""
    reply = error_reply(error, request_id)
    if (record := CURRENT.get()) is not None:
        record.code, record.message = reply.code.name, reply.message
    if reply.code is grpc.StatusCode.INTERNAL:
        LOGGER.error("request %s failed", request_id, exc_info=error, extra={"request_id": request_id})
    elif record is None:
        LOGGER.debug(
            "request %s rejected: %s: %s",
            request_id,
            reply.code.name,
            reply.message,
            extra={"request_id": request_id},
        )
    return replace(reply, trailers=(*reply.trailers, (REQUEST_ID, request_id)))
