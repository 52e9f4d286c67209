"""Opening a stream, which both clients do alike: the channel's kind decides how it is read."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from polyhead_client.calls import Stream
from polyhead_client.errors import ServerError
from polyhead_client.status import new_request_id, translated
from polyhead_proto.names import REQUEST_ID, WANTS_STATUS


@dataclass(frozen=True, kw_only=True)
class OpenStream:
    """A stream that has been called."""

    call: Any
    """gRPC's; of asyncio where the channel is."""
    translated: Callable[[], AbstractContextManager[None]]
    """Reading happens inside: gRPC's errors become ours."""
    ended_early: ServerError
    """For a stream that ends before the operation does."""


def open_stream(
    channel: Any, wanted: Stream, *, target: str, metadata: Sequence[tuple[str, str]]
) -> OpenStream:
    """Calls a streaming procedure with its one request.

    Args:
        channel: A channel of gRPC, of either kind.
        wanted: What to call.
        target: The server's address, for messages.
        metadata: To send along.
    """
    request_id = new_request_id()
    timeout = wanted.deadline.timeout
    return OpenStream(
        call=channel.stream_stream(wanted.rpc.path)(
            iter([wanted.data]),
            timeout=wanted.deadline.remaining(),
            metadata=((REQUEST_ID, request_id), WANTS_STATUS, *metadata),
        ),
        translated=partial(
            translated, target=target, rpc=wanted.rpc.name, timeout=timeout, request_id=request_id
        ),
        ended_early=ServerError(f"malformed reply: {target} ended the stream before the last part"),
    )
