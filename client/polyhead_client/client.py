"""The synchronous client; `polyhead_client.aio` has the one for asyncio."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

import grpc

from polyhead_client.arguments import DEFAULT_TARGET, DEFAULT_TIMEOUT_S
from polyhead_client.calls import (
    Action,
    Answer,
    Call,
    Gather,
    Join,
    NextMessage,
    Operation,
    Sleep,
    Stream,
    as_method,
    resume,
)
from polyhead_client.channel import OpenStream, call_metadata, check_connection, open_channel, open_stream
from polyhead_client.errors import Cancelled, PolyheadError
from polyhead_client.operations import refuse_copy
from polyhead_client.retry import retrying
from polyhead_client.status import deadline_exceeded, new_request_id, translated
from polyhead_client.tasks import Tasks
from polyhead_proto.names import REQUEST_ID
from polyhead_proto.wants import check_flag

P = ParamSpec("P")
T = TypeVar("T")

_MAX_BACKGROUND = 32
"""Joined requests in flight."""


def _blocking(
    operation: Callable[Concatenate[Tasks, P], Operation[T]],
) -> Callable[Concatenate["Client", P], T]:
    """Make a method that runs an operation."""

    @as_method(operation)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(operation(self._operations, *args, **kwargs))

    return method


class Client:
    """A client of polyhead servers. It is safe to share between threads.

    ```
    with Client() as client:
        encoding = client.encode("The cat sat on the mat.", attention=[5])
        encoding.pooled          # [D]
        encoding.attention[5]    # [H, T, T]
    ```
    """

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
        channel: grpc.Channel | None = None,
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
        check_connection(target, credentials, options, channel, grpc.aio.Channel)
        check_flag("patient", patient)
        check_flag("coalesce", coalesce)
        self._target = target
        self._operations = Tasks(target, timeout, self._start if coalesce else None)
        self._background = ThreadPoolExecutor(_MAX_BACKGROUND, thread_name_prefix="polyhead-client")
        self._patient = patient
        self._metadata = call_metadata(token)
        self._owned = channel is None
        self._channel: Any = open_channel(target, credentials, options) if channel is None else channel
        self._procedures: dict[str, Any] = {}
        self._closed = False

    __reduce__ = refuse_copy

    encode = _blocking(Tasks.encode)
    classify = _blocking(Tasks.classify)
    rerank = _blocking(Tasks.rerank)
    tag = _blocking(Tasks.tag)
    maxsim = _blocking(Tasks.maxsim)
    compare = _blocking(Tasks.compare)
    chunks = _blocking(Tasks.chunks)
    trace = _blocking(Tasks.trace)
    direction = _blocking(Tasks.direction)
    model = _blocking(Tasks.model)
    models = _blocking(Tasks.models)
    metadata = _blocking(Tasks.metadata)
    statistics = _blocking(Tasks.statistics)
    live = _blocking(Tasks.live)
    ready = _blocking(Tasks.ready)
    wait_until_ready = _blocking(Tasks.wait_until_ready)

    def close(self) -> None:
        """Close the connections, and cancel the calls in flight."""
        self._closed = True
        self._operations.close()
        self._background.shutdown(wait=False)
        if self._owned:
            self._channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, operation: Operation[T], calls: "_OpenCalls | None" = None) -> T:
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._patient:
            operation = retrying(operation)
        streams: dict[Stream, OpenStream] = {}
        answer: Answer = None
        try:
            while True:
                action = resume(operation, answer)
                try:
                    answer = self._perform(action, streams, calls)
                except PolyheadError as error:
                    if self._closed:  # the call was cancelled by close(): do not retry
                        raise
                    answer = error
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            operation.close()
            for stream in streams.values():
                stream.call.cancel()

    def _perform(
        self, action: Action, streams: dict[Stream, OpenStream], calls: "_OpenCalls | None"
    ) -> bytes:
        try:
            match action:
                case Call():
                    return self._call(action, calls)
                case Join():
                    self._join(action)
                case Stream():
                    stream = open_stream(self._channel, action, target=self._target, metadata=self._metadata)
                    streams[action] = stream
                    if calls is not None:
                        calls.add(stream.call)
                    return _next_message(stream)
                case NextMessage():
                    return _next_message(streams[action.stream])
                case Sleep():
                    time.sleep(action.seconds)
                case Gather():
                    self._gather(action)
        except ValueError as error:  # gRPC's, of a channel that is closed
            if not self._closed or isinstance(error, PolyheadError):
                raise
            raise Cancelled.by_close() from error
        return b""

    def _call(self, action: Call, calls: "_OpenCalls | None") -> bytes:
        rpc, deadline = action.rpc, action.deadline
        if (procedure := self._procedures.get(rpc.name)) is None:
            procedure = self._procedures[rpc.name] = self._channel.unary_unary(rpc.path)
        request_id = new_request_id()
        with translated(target=self._target, rpc=rpc.name, timeout=deadline.timeout, request_id=request_id):
            arguments: dict[str, Any] = {
                "timeout": deadline.remaining(),
                "metadata": ((REQUEST_ID, request_id), *self._metadata),
            }
            if calls is None:
                return bytes(procedure(action.data, **arguments))
            call = procedure.future(action.data, **arguments)
            calls.add(call)
            return bytes(call.result())

    def _join(self, action: Join) -> None:
        woken: SimpleQueue[None] = SimpleQueue()
        try:
            action.enter(partial(woken.put, None))
            try:
                woken.get(timeout=action.patience)
            except Empty:
                action.overdue()
                woken.get(timeout=action.deadline.remaining())
        except Empty:
            raise deadline_exceeded(
                target=self._target, rpc=action.rpc.name, timeout=action.deadline.timeout
            ) from None
        finally:
            error = action.leave()
        if error is not None:
            raise error

    def _start(self, operation: Operation[None]) -> Callable[[], None]:
        calls = _OpenCalls()
        self._background.submit(self._run, operation, calls)
        return calls.cancel

    def _gather(self, action: Gather) -> None:
        calls = _OpenCalls()
        with ThreadPoolExecutor(action.max_in_flight, thread_name_prefix="polyhead-client") as pool:
            try:
                running = [pool.submit(self._run, operation, calls) for operation in action.operations]
                for future in as_completed(running):
                    action.on_result(future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                calls.cancel()
                raise


class _OpenCalls:
    """The calls of several threads, to cancel them together."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: WeakSet[Any] = WeakSet()
        self._cancelled = False

    def add(self, call: Any) -> None:
        """Add a call; it is not kept alive."""
        with self._lock:
            self._calls.add(call)
            if self._cancelled:
                call.cancel()

    def cancel(self) -> None:
        """Cancel all calls, including those that are added later."""
        with self._lock:
            self._cancelled = True
            for call in self._calls:
                call.cancel()


def _next_message(stream: OpenStream) -> bytes:
    with stream.translated():
        for message in stream.call:
            return bytes(message)
    raise stream.ended_early
