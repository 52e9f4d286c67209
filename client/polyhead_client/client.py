"""The client for ordinary code; `polyhead_client.aio` has the one for asyncio."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

import grpc

from polyhead_client.arguments import check_flag
from polyhead_client.calls import Call, More, Operation, Pause, Stream, Together, Wanted
from polyhead_client.channel import call_metadata, check_connection, open_channel
from polyhead_client.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT_S
from polyhead_client.errors import PolyheadError
from polyhead_client.methods import as_method
from polyhead_client.operations import Operations
from polyhead_client.patience import patiently
from polyhead_client.status import new_request_id, translated
from polyhead_client.streams import OpenStream, open_stream
from polyhead_proto.names import REQUEST_ID

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    operation: Callable[Concatenate[Operations, P], Operation[T]],
) -> Callable[Concatenate["Client", P], T]:
    """A method that drives an operation to its end."""

    @as_method(operation)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(operation(self._operations, *args, **kwargs))

    return method


class Client:
    """Calls a polyhead server. Threads may share it.

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
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        options: Sequence[tuple[str, Any]] = (),
        channel: grpc.Channel | None = None,
    ) -> None:
        """Prepares a client; the first call connects.

        Args:
            target: `host:port`, `unix:/path`, or another of gRPC's names, such as `dns:///host:port`.
            timeout: Seconds that an operation may take, where the call gives none; None is no limit.
            patient: Whether calls to a server that is unavailable (it starts again, or is full) are made
                again for as long as `timeout` allows; otherwise three times, within about a second.
            credentials: For TLS, such as `grpc.ssl_channel_credentials()`; None is plain text.
            token: Sent with every call, where the server asks for one. Without TLS it can be read on the way.
            options: Channel options of gRPC, over the client's own.
            channel: Used instead of opening one: for interceptors, fakes and measuring. `target` then
                only names it, retries are those it was made with (`polyhead_client.channel.OPTIONS`
                has ours), and its owner closes it.

        Raises:
            InvalidRequest: An argument is not what it must be; the message names it.
        """
        check_connection(target, credentials, options, channel, grpc.aio.Channel)
        check_flag("patient", patient)
        self._target = target
        self._operations = Operations(target, timeout)
        self._patient = patient
        self._metadata = call_metadata(token)
        self._owned = channel is None
        self._channel = open_channel(target, credentials, options) if channel is None else channel
        self._procedures: dict[str, grpc.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        self._closed = False

    encode = _blocking(Operations.encode)
    model = _blocking(Operations.model)
    models = _blocking(Operations.models)
    metadata = _blocking(Operations.metadata)
    statistics = _blocking(Operations.statistics)
    live = _blocking(Operations.live)
    ready = _blocking(Operations.ready)
    wait_until_ready = _blocking(Operations.wait_until_ready)

    def close(self) -> None:
        """Closes the connection; calls under way are cancelled."""
        self._closed = True
        if self._owned:
            self._channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, operation: Operation[T], under_way: "_UnderWay | None" = None) -> T:
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._patient:
            operation = patiently(operation)
        step: Callable[[], Wanted] = partial(next, operation)
        stream: OpenStream | None = None
        try:
            while True:
                wanted = step()
                try:
                    match wanted:
                        case Stream():
                            stream = self._stream(wanted, under_way)
                            answer = _next(stream)
                        case More():
                            answer = _next(stream)
                        case _:
                            answer = self._answer(wanted, under_way)
                except PolyheadError as error:
                    if self._closed:  # this called it off, so nothing is to be tried again
                        raise
                    step = partial(operation.throw, error)
                else:
                    step = partial(operation.send, answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            if stream is not None:
                stream.call.cancel()

    def _stream(self, wanted: Stream, under_way: "_UnderWay | None") -> OpenStream:
        stream = open_stream(self._channel, wanted, target=self._target, metadata=self._metadata)
        if under_way is not None:
            under_way.add(stream.call)
        return stream

    def _together(self, wanted: Together) -> bytes:
        under_way = _UnderWay()
        with ThreadPoolExecutor(wanted.at_once, thread_name_prefix="polyhead-client") as pool:
            try:
                running = [pool.submit(self._run, one, under_way) for one in wanted.operations]
                for future in as_completed(running):
                    wanted.ended(future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                under_way.cancel()
                raise
        return b""

    def _answer(self, wanted: Call | Pause | Together, under_way: "_UnderWay | None") -> bytes:
        if isinstance(wanted, Together):
            return self._together(wanted)
        if isinstance(wanted, Pause):
            time.sleep(wanted.seconds)
            return b""
        rpc, deadline = wanted.rpc, wanted.deadline
        if (procedure := self._procedures.get(rpc.name)) is None:
            procedure = self._procedures[rpc.name] = self._channel.unary_unary(rpc.path)
        request_id = new_request_id()
        with translated(target=self._target, rpc=rpc.name, timeout=deadline.timeout, request_id=request_id):
            arguments: dict[str, Any] = {
                "timeout": deadline.remaining(),
                "metadata": ((REQUEST_ID, request_id), *self._metadata),
            }
            if under_way is None:
                return procedure(wanted.data, **arguments)
            call = procedure.future(wanted.data, **arguments)
            under_way.add(call)
            return bytes(call.result())


class _UnderWay:
    """Calls of several threads, that can be called off all at once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: WeakSet[Any] = WeakSet()
        self._cancelled = False

    def add(self, call: Any) -> None:
        """Remembers a call, while it is held elsewhere."""
        with self._lock:
            self._calls.add(call)
            if self._cancelled:
                call.cancel()

    def cancel(self) -> None:
        """Cancels them, and those that come."""
        with self._lock:
            self._cancelled = True
            for call in self._calls:
                call.cancel()


def _next(stream: OpenStream | None) -> bytes:
    if stream is None:
        raise RuntimeError("no stream is open")
    with stream.translated():
        for message in stream.call:
            return bytes(message)
    raise stream.ended_early
