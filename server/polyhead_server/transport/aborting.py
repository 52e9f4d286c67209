"""The one place where errors become statuses."""

from dataclasses import replace
from typing import Any, NoReturn

import grpc

from polyhead_proto.names import REQUEST_ID
from polyhead_server.errors import ErrorReply, error_reply
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.request_log import CURRENT, request_id

Context = grpc.aio.ServicerContext[Any, Any]


def refusal_of(context: Context, error: Exception) -> ErrorReply:
    """What the caller is told about an error; what is ours goes to the log."""
    name = request_id(context)
    told = error_reply(error, name)
    if (record := CURRENT.get()) is not None:
        record.code, record.message = told.code.name, told.message
    if told.code is grpc.StatusCode.INTERNAL:
        LOGGER.error("request %s failed", name, exc_info=error, extra={"request_id": name})
    elif record is None:
        LOGGER.debug(
            "request %s refused: %s: %s", name, told.code.name, told.message, extra={"request_id": name}
        )
    return replace(told, trailers=(*told.trailers, (REQUEST_ID, name)))


async def abort(context: Context, error: Exception) -> NoReturn:
    """Ends a call with the status of an error.

    Raises:
        AbortError: Always; gRPC wants it to pass.
    """
    if isinstance(error, grpc.aio.AbortError):
        raise error
    told = refusal_of(context, error)
    await context.abort(told.code, told.message, told.trailers)
