"""A record of each request, for the access lines of the log and for traces.

Records are kept only if they are used: for log lines at level debug, or for traces.
"""

import logging
import re
import uuid
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from polyhead_proto.names import REQUEST_ID
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.request_record import CURRENT, RequestRecord
from polyhead_server.observability.tracing import Tracer


class Context(Protocol):
    """What is recorded of a call."""

    def invocation_metadata(self) -> Any:
        """Return what the caller has sent with the call."""


_REQUEST_ID = re.compile(r"[!-~]{1,128}")


class RequestLog:
    """Keep records while requests are answered, then log and trace them.

    Args:
        tracer: Writes traces; None writes none.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer

    def request(self, context: Context) -> AbstractContextManager[None]:
        """Keep the record of a request for a block and then write it, if anybody wants to have it."""
        is_wanted = self._tracer is not None or LOGGER.isEnabledFor(logging.DEBUG)
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
            _log(record)
            if self._tracer is not None:
                self._tracer.write(record, context.invocation_metadata())


def request_id(context: Context) -> str:
    """Return the caller's `x-request-id`, or a new one that stays the same while a record is kept."""
    record = CURRENT.get()
    if record is not None:
        return record.request_id
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return uuid.uuid4().hex


def _log(record: RequestRecord) -> None:
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
