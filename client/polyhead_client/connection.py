"""What `Client` and `AsyncClient` have in common."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar
from uuid import uuid4

import grpc

from polyhead_client.arguments import DEFAULT_TARGET, DEFAULT_TIMEOUT_S
from polyhead_client.calls import Call, Operation, Stream
from polyhead_client.channel import OpenStream, call_metadata, check_connection, open_stream
from polyhead_client.errors import PolyheadError
from polyhead_client.operations import refuse_copy
from polyhead_client.status import failure_of
from polyhead_client.tasks import Tasks
from polyhead_proto.names import REQUEST_ID
from polyhead_proto.wants import check_flag

C = TypeVar("C")


class Connection(Generic[C]):
    """A client's channel, of the kind C, and its operations."""

    _other: ClassVar[type]
    """The kind of channel that the other client takes."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        patient: bool = False,
        coalesce: bool = True,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        options: Sequence[tuple[str, Any]] = (),
        channel: C | None = None,
    ) -> None:
        """Prepare a client; the first call connects.

        Args:
            target: One server, `host:port` or `unix:/path`. Or several, which take turns: a DNS name with
                the addresses of all, `dns:///name:port`, or `ipv4:10.0.0.1:8001,10.0.0.2:8001`.
            timeout: The default timeout of an operation in seconds; None means no limit.
            patient: Whether to retry for as long as `timeout` allows while the server is unavailable (it
                restarts, or is full). Otherwise calls are retried three times, within about a second.
            coalesce: Whether to join small concurrent `encode` calls of the same form into one request while
                others are under way. A call that is joined has the timings of that request.
            credentials: Credentials for TLS, such as `grpc.ssl_channel_credentials()`; None means no TLS.
            token: A bearer token to send with every call. Without TLS it crosses the network in the clear.
            options: gRPC channel options, which override the client's own.
            channel: A channel to use instead of opening one, for interceptors, fakes and measurements.
                `target` then only names it, its own retry policy applies (ours is in
                `polyhead_client.channel.OPTIONS`), no other is opened, and its owner closes it.

        Raises:
            InvalidRequest: An argument is not valid; the message names it.
        """
        check_connection(target, credentials, options, channel, self._other)
        check_flag("patient", patient)
        check_flag("coalesce", coalesce)
        self._target = target
        self._operations = Tasks(target, timeout, self._start if coalesce else None)
        self._patient = patient
        self._metadata = call_metadata(token)
        self._owned = channel is None
        self._channel: Any = channel
        self._opened = target, credentials, options
        self._procedures: dict[str, Any] = {}
        self._closed = False
        self._set_up()

    __reduce__ = refuse_copy

    def _set_up(self) -> None:
        """Prepare what only one kind of client has."""
        raise NotImplementedError

    def _start(self, operation: Operation[None]) -> Callable[[], None]:
        """Start an operation in the background, from any thread; return a function that cancels it."""
        raise NotImplementedError

    def _prepared(self, action: Call) -> tuple[Any, dict[str, Any]]:
        """Return the procedure to call, and with which options."""
        path = action.rpc.path
        if (procedure := self._procedures.get(path)) is None:
            procedure = self._procedures[path] = self._channel.unary_unary(path)
        return procedure, {
            "timeout": action.deadline.remaining(),
            "metadata": ((REQUEST_ID, uuid4().hex), *self._metadata),
        }

    def _failure(self, error: grpc.RpcError, action: Call, options: dict[str, Any]) -> PolyheadError:
        """Return what the error of a call means, which was made with these options."""
        (_, request_id), *_ = options["metadata"]
        timeout = action.deadline.timeout
        return failure_of(
            error, target=self._target, rpc=action.rpc.name, timeout=timeout, request_id=request_id
        )

    def _opened_stream(self, action: Stream) -> OpenStream:
        """Call a streaming procedure."""
        return open_stream(self._channel, action, target=self._target, metadata=self._metadata)
