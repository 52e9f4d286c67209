"""What calls over gRPC and HTTP have in common: names of methods, and errors that become a status."""

from dataclasses import replace

import grpc

from polyhead_proto import RPCS
from polyhead_proto.names import REQUEST_ID
from polyhead_server.errors import ErrorReply, error_reply
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.request_record import CURRENT

INFER, STREAM_INFER = RPCS["ModelInfer"].path, RPCS["ModelStreamInfer"].path
INFERENCE = frozenset({INFER, STREAM_INFER})
HEALTH = "grpc.health.v1.Health"


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
