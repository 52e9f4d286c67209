"""The synchronous client; `polyhead_client.aio` has the one for asyncio."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

import grpc

from polyhead_client.calls import (
    Action,
    Call,
    Gather,
    Join,
    NextMessage,
    Operation,
    Sleep,
    Stream,
    as_method,
)
from polyhead_client.channel import OpenStream, open_channel
from polyhead_client.connection import Connection
from polyhead_client.errors import Cancelled, PolyheadError
from polyhead_client.retry import retrying
from polyhead_client.status import deadline_exceeded
from polyhead_client.tasks import Tasks

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


class Client(Connection[grpc.Channel]):
    """A client of polyhead servers. It is safe to share between threads.

    ```
    with Client() as client:
        encoding = client.encode("The cat sat on the mat.", attention=[5])
        encoding.pooled          # [D]
        encoding.attention[5]    # [H, T, T]
    ```
    """

    _other = grpc.aio.Channel

    def _set_up(self) -> None:
        self._background = ThreadPoolExecutor(_MAX_BACKGROUND, thread_name_prefix="polyhead-client")
        self._channel = self._channel or open_channel(*self._opened)

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
        try:
            action = next(operation)
            while True:
                try:
                    answer = (
                        self._call(action, calls)
                        if isinstance(action, Call)
                        else self._perform(action, streams, calls)
                    )
                except PolyheadError as error:
                    if self._closed:  # the call was cancelled by close(): do not retry
                        raise
                    action = operation.throw(error)
                except ValueError as error:  # gRPC's, of a channel that is closed
                    if not self._closed:
                        raise
                    raise Cancelled.by_close() from error
                else:
                    action = operation.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            operation.close()
            for stream in streams.values():
                stream.call.cancel()

    def _call(self, action: Call, calls: "_OpenCalls | None") -> bytes:
        procedure, options = self._prepared(action)
        try:
            if calls is None:
                return bytes(procedure(action.data, **options))
            call = procedure.future(action.data, **options)
            calls.add(call)
            return bytes(call.result())
        except grpc.RpcError as error:
            raise self._failure(error, action, options) from error

    def _perform(
        self, action: Action, streams: dict[Stream, OpenStream], calls: "_OpenCalls | None"
    ) -> bytes:
        match action:
            case Join():
                self._join(action)
            case Stream():
                stream = streams[action] = self._opened_stream(action)
                if calls is not None:
                    calls.add(stream.call)
                return _next_message(stream)
            case NextMessage():
                return _next_message(streams[action.stream])
            case Sleep():
                time.sleep(action.seconds)
            case Gather():
                self._gather(action)
        return b""

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
