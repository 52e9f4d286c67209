"""The client for asyncio; `polyhead_client.client` has the synchronous one."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

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

_LARGE = 1 << 20


def _awaited(
    operation: Callable[Concatenate[Tasks, P], Operation[T]],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    """Make a coroutine method that runs an operation."""

    @as_method(operation)
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(operation(self._operations, *args, **kwargs))

    return method


class AsyncClient(Connection[grpc.aio.Channel]):
    """A client of polyhead servers for asyncio, with the methods of `Client` as coroutines.

    Its first call binds it to the running event loop. In another loop, calls raise `RuntimeError`.

    ```
    async with AsyncClient() as client:
        encoding = await client.encode("The cat sat on the mat.", attention=[5])
    ```
    """

    _other = grpc.Channel

    def _set_up(self) -> None:
        self._background: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waits = _Waits()

    encode = _awaited(Tasks.encode)
    classify = _awaited(Tasks.classify)
    rerank = _awaited(Tasks.rerank)
    tag = _awaited(Tasks.tag)
    maxsim = _awaited(Tasks.maxsim)
    compare = _awaited(Tasks.compare)
    chunks = _awaited(Tasks.chunks)
    trace = _awaited(Tasks.trace)
    direction = _awaited(Tasks.direction)
    model = _awaited(Tasks.model)
    models = _awaited(Tasks.models)
    metadata = _awaited(Tasks.metadata)
    statistics = _awaited(Tasks.statistics)
    live = _awaited(Tasks.live)
    ready = _awaited(Tasks.ready)
    wait_until_ready = _awaited(Tasks.wait_until_ready)

    async def close(self) -> None:
        """Close the connections, and cancel the calls in flight."""
        self._closed = True
        self._operations.close()
        if self._owned and self._channel is not None:
            await asyncio.gather(*self._channel.close())

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, operation: Operation[T]) -> T:
        if self._closed or asyncio.get_running_loop() is not self._loop:
            self._bind()
        if self._patient:
            operation = retrying(operation)
        streams: dict[Stream, OpenStream] = {}
        advance: Callable[[], Action] = partial(next, operation)
        received = 0
        try:
            while True:
                if received < _LARGE:
                    action, result = _advanced(advance)
                else:  # a large reply is read in a thread, so that it does not block the event loop
                    action, result = await asyncio.to_thread(_advanced, advance)
                if action is None:
                    return cast(T, result)
                try:
                    answer = await (
                        self._join(action) if isinstance(action, Join) else self._perform(action, streams)
                    )
                    received = received + len(answer) if isinstance(action, NextMessage) else len(answer)
                    advance = partial(operation.send, answer)
                except PolyheadError as error:
                    if self._closed:  # the call was cancelled by close(): do not retry
                        raise
                    advance = partial(operation.throw, error)
        finally:
            with suppress(ValueError):  # a thread still reads a large reply, and ends the operation
                operation.close()
            for stream in streams.values():
                stream.call.cancel()

    def _bind(self) -> None:
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._loop is not None:
            raise RuntimeError(
                "the client must be used in the event loop of its first call, was called in another: "
                "make a client in each loop"
            )
        self._loop = asyncio.get_running_loop()

    async def _call(self, action: Call) -> bytes:
        procedure, options = self._prepared(action)
        try:
            reply: bytes = await procedure(action.data, **options)
        except grpc.RpcError as error:
            raise self._failure(error, action, options) from error
        return reply

    async def _perform(self, action: Action, streams: dict[Stream, OpenStream]) -> bytes:
        self._channel = self._channel or open_channel(*self._opened, kind=grpc.aio)
        try:
            match action:
                case Call():
                    return await self._call(action)
                case Stream():
                    streams[action] = self._opened_stream(action)
                    return await _next_message(streams[action])
                case NextMessage():
                    return await _next_message(streams[action.stream])
                case Sleep():
                    await asyncio.sleep(action.seconds)
                case Gather():
                    await self._gather(action)
        except grpc.aio.UsageError as error:  # of a channel that is closed
            if not self._closed:
                raise
            raise Cancelled.by_close() from error
        return b""

    async def _join(self, action: Join) -> bytes:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        self._waits.add(woken, action)
        try:
            action.enter(partial(_on_loop, loop, _wake, woken, True))
            in_time = await woken
        finally:
            error = action.leave()
            self._waits.remove(woken)
        if not in_time:
            raise deadline_exceeded(target=self._target, rpc=action.rpc.name, timeout=action.deadline.timeout)
        if error is not None:
            raise error
        return b""

    def _start(self, operation: Operation[None]) -> Callable[[], None]:
        loop, tasks = cast(asyncio.AbstractEventLoop, self._loop), self._background
        started: list[asyncio.Task[None]] = []

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not task.cancelled():
                task.exception()  # each of the callers that it served meets its own

        def start() -> None:
            task = asyncio.create_task(self._run(operation))
            started.append(task)
            tasks.add(task)  # the loop itself holds tasks weakly
            task.add_done_callback(ended)

        def cancel() -> None:
            for task in started:
                task.cancel()

        _on_loop(loop, start)
        return partial(_on_loop, loop, cancel)

    async def _gather(self, action: Gather) -> None:
        free = asyncio.Semaphore(action.max_in_flight)

        async def run(operation: Operation[int]) -> int:
            async with free:
                return await self._run(operation)

        tasks = [asyncio.create_task(run(operation)) for operation in action.operations]
        try:
            for ended in asyncio.as_completed(tasks):
                action.on_result(await ended)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Waits:
    """End the waits for joined requests that last too long.

    One timer serves all. One for each would take a tenth of the time of a call.
    """

    def __init__(self) -> None:
        self._waits: dict[asyncio.Future[bool], tuple[float, Join, bool]] = {}
        """When to act next, in the event loop's time, and whether the call is overdue by then."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, woken: asyncio.Future[bool], action: Join) -> None:
        """Notify the action when its patience ends, and end its wait at the deadline."""
        loop = woken.get_loop()
        time = loop.time() + action.patience
        self._waits[woken] = time, action, False
        if self._timer is None or time < self._timer.when():
            self._set_timer(loop, time)

    def remove(self, woken: asyncio.Future[bool]) -> None:
        """Forget a wait that has ended. The timer stays for those that follow."""
        self._waits.pop(woken, None)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, time: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(time, self._act, loop)

    def _act(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for woken, (time, action, is_overdue) in list(self._waits.items()):
            if time > now:
                continue
            self.remove(woken)
            if is_overdue:
                _wake(woken, False)
                continue
            if (remaining := action.deadline.remaining()) is not None:
                self._waits[woken] = now + remaining, action, True
            action.overdue()
        if self._waits:
            self._set_timer(loop, min(time for time, _, _ in self._waits.values()))


def _advanced(advance: Callable[[], Action]) -> tuple[Action | None, Any]:
    """Resume an operation; return its next action or, with None, its result."""
    try:
        return advance(), None
    except StopIteration as stop:  # which cannot be raised through a future
        return None, stop.value


def _wake(future: asyncio.Future[bool], in_time: bool) -> None:
    if not future.done():
        future.set_result(in_time)


def _on_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    """Call a function now or, from another thread, soon. Large replies are read in threads."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop.call_soon_threadsafe(function, *args)
    else:
        function(*args)


async def _next_message(stream: OpenStream) -> bytes:
    with stream.translated():
        message = await stream.call.read()
    if message is grpc.aio.EOF:
        raise stream.ended_early
    return bytes(message)
