"""The client for asyncio; `polyhead_client.client` has the one for ordinary code."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import grpc

from polyhead_client.arguments import check_flag
from polyhead_client.calls import Call, More, Operation, Pause, Stream, Together, Wanted
from polyhead_client.channel import call_metadata, check_connection, open_aio_channel
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

_LARGE = 1 << 20


def _awaited(
    operation: Callable[Concatenate[Operations, P], Operation[T]],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    """A coroutine method that drives an operation to its end."""

    @as_method(operation)
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(operation(self._operations, *args, **kwargs))

    return method


class AsyncClient:
    """Calls a polyhead server from asyncio: the methods of `Client`, awaited.

    ```
    async with AsyncClient() as client:
        encoding = await client.encode("The cat sat on the mat.", attention=[5])
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
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        """Prepares a client; the first call connects, and binds it to the running event loop.

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
        check_connection(target, credentials, options, channel, grpc.Channel)
        check_flag("patient", patient)
        self._target = target
        self._operations = Operations(target, timeout)
        self._patient = patient
        self._metadata = call_metadata(token)
        self._owned = channel is None
        self._channel = channel
        self._open = partial(open_aio_channel, target, credentials, options)
        self._procedures: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        self._closed = False

    encode = _awaited(Operations.encode)
    model = _awaited(Operations.model)
    models = _awaited(Operations.models)
    metadata = _awaited(Operations.metadata)
    statistics = _awaited(Operations.statistics)
    live = _awaited(Operations.live)
    ready = _awaited(Operations.ready)
    wait_until_ready = _awaited(Operations.wait_until_ready)

    async def close(self) -> None:
        """Closes the connection; calls under way are cancelled."""
        self._closed = True
        if self._owned and self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, operation: Operation[T]) -> T:
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._patient:
            operation = patiently(operation)
        step: Callable[[], Wanted] = partial(next, operation)
        stream: OpenStream | None = None
        received = 0
        try:
            while True:
                # What is large is read in a thread, so that the event loop does not wait for it.
                done, wanted, result = (
                    _advance(step) if received < _LARGE else await asyncio.to_thread(_advance, step)
                )
                if done:
                    return cast(T, result)
                try:
                    match wanted:
                        case Stream():
                            self._channel = self._channel or self._open()
                            stream = open_stream(
                                self._channel, wanted, target=self._target, metadata=self._metadata
                            )
                            answer = await _next(stream)
                        case More():
                            answer = await _next(stream)
                        case _:
                            answer = await self._answer(cast(Call | Pause | Together, wanted))
                except PolyheadError as error:
                    if self._closed:  # this called it off, so nothing is to be tried again
                        raise
                    step = partial(operation.throw, error)
                else:
                    received += len(answer)
                    step = partial(operation.send, answer)
        finally:
            if stream is not None:
                stream.call.cancel()

    async def _together(self, wanted: Together) -> bytes:
        free = asyncio.Semaphore(wanted.at_once)

        async def run(operation: Operation[int]) -> int:
            async with free:
                return await self._run(operation)

        tasks = [asyncio.create_task(run(operation)) for operation in wanted.operations]
        try:
            for ended in asyncio.as_completed(tasks):
                wanted.ended(await ended)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return b""

    async def _answer(self, wanted: Call | Pause | Together) -> bytes:
        if isinstance(wanted, Together):
            return await self._together(wanted)
        if isinstance(wanted, Pause):
            await asyncio.sleep(wanted.seconds)
            return b""
        rpc, deadline = wanted.rpc, wanted.deadline
        if (procedure := self._procedures.get(rpc.name)) is None:
            self._channel = self._channel or self._open()
            procedure = self._procedures[rpc.name] = self._channel.unary_unary(rpc.path)
        request_id = new_request_id()
        with translated(target=self._target, rpc=rpc.name, timeout=deadline.timeout, request_id=request_id):
            return await procedure(
                wanted.data,
                timeout=deadline.remaining(),
                metadata=((REQUEST_ID, request_id), *self._metadata),
            )


def _advance(step: Callable[[], Wanted]) -> tuple[bool, Wanted | None, object]:
    """One step of an operation: whether it has ended, what it wants next, its result."""
    try:
        return False, step(), None
    except StopIteration as stop:
        return True, None, stop.value


async def _next(stream: OpenStream | None) -> bytes:
    if stream is None:
        raise RuntimeError("no stream is open")
    with stream.translated():
        message = await stream.call.read()
    if message is grpc.aio.EOF:
        raise stream.ended_early
    return bytes(message)
