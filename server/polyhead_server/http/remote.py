"""Call a runtime that lives on another thread's event loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from google.protobuf.message import Message

from polyhead_proto import RPCS
from polyhead_server.errors import DrainingError, ExpiredError
from polyhead_server.inference.wire import LARGE
from polyhead_server.runtime import Runtime

T = TypeVar("T")


class RemoteRuntime:
    """Call a runtime from the event loop of another thread. Leaving a call cancels it.

    Args:
        runtime: Answers requests.
        loop: The event loop that it lives on.
    """

    def __init__(self, runtime: Runtime, loop: asyncio.AbstractEventLoop) -> None:
        self.registry = runtime.registry
        self.serving = runtime.serving
        self.settings = runtime.settings
        self._runtime = runtime
        self._loop = loop

    async def call(self, procedure: str, request: Message) -> Any:
        """Return the response of a procedure other than inference.

        Raises:
            RequestError: The caller gets the reason.
        """
        response = await self._run(self._runtime.call(procedure, request.SerializeToString()))
        return RPCS[procedure].response.FromString(response)

    @asynccontextmanager
    async def infer(self, request: bytes, *, deadline: float) -> AsyncIterator[bytes]:
        """Yield the reply to an inference request. Its memory counts as held until the end of the block.

        Args:
            request: A `ModelInferRequest`.
            deadline: When the caller stops waiting, by `time.monotonic`, as all event loops count.

        Raises:
            RequestError: The caller gets the reason.
            EngineError: The engine failed.
        """
        deadline = min(deadline, time.monotonic() + self.settings.max_request_seconds)
        held = _Held()
        size = None
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    reply = await self._run(
                        self._runtime.infer(request, deadline=deadline, until_sent=held.keep)
                    )
            except TimeoutError:
                raise ExpiredError(
                    "the deadline passed before there was an answer: give the call more time"
                ) from None
            size = len(reply)
            yield reply
        finally:
            if size is None or size >= LARGE:  # otherwise nothing has been kept
                self.soon(held.release)

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function on the runtime's event loop, unless that has ended."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise DrainingError from None
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():  # it was not we who cancelled
                raise DrainingError from None
            raise


class _Held:
    """What the runtime holds for a reply until it has been sent. Used on the runtime's event loop only."""

    def __init__(self) -> None:
        self._release: Callable[..., None] | None = None
        self._over = False

    def keep(self, release: Callable[..., None]) -> None:
        """Note how the memory is released. Where the caller has left meanwhile, release it."""
        self._release = release
        if self._over:
            release()

    def release(self) -> None:
        """Release the memory, if there is any."""
        self._over = True
        if self._release is not None:
            self._release()
