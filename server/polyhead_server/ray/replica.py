"""A replica of one family: a runtime, with its engine and scheduler, inside an actor of Ray."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import ray
from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError

from polyhead_server.engine.allocator import give_memory_back, keep_trim
from polyhead_server.engine.devices import flush_denormals
from polyhead_server.errors import DeviceLostError, ErrorReply, StartError
from polyhead_server.grpc.call import logged_reply
from polyhead_server.observability.logs import LOGGER, configure
from polyhead_server.repository.private import remove_abandoned_copies
from polyhead_server.runtime import Runtime
from polyhead_server.settings import Settings

Answer: TypeAlias = bytes | ErrorReply
"""A message, or the status that ends a call: exceptions would lose their types between processes."""

T = TypeVar("T")

_ALL_REPLICAS_SECONDS = 2.0
"""How long the replicas of a family may take to say how they are."""
_OTHERS_SECONDS = 5.0
"""How long a replica whose load has failed waits for one that starts beside it to be ready."""


class FamilyReplica:
    """Answer the requests of one family.

    A replica that cannot load what another one serves is not healthy, so Serve starts one in its place. Where
    none serves the family, replicas stay and say why: another start would not change that, and Serve would
    take the whole application for failed. So they do where the family has been removed from the repository,
    which each replica notices at its next poll.

    Args:
        settings: The repository, the device and the limits.
        family: The family's name.

    Raises:
        StartError: The repository cannot be read, or has no such family. Serve tries again.
    """

    # Serve awaits it.
    async def __init__(self, settings: Settings, family: str) -> None:  # type: ignore[misc]
        configure(settings.log_level, settings.log_format)
        give_memory_back()
        if settings.device != "openvino":  # see `polyhead_server.process.run`
            flush_denormals()
        remove_abandoned_copies()
        self._family = family
        self._was_present = False
        self._runtime = Runtime(_with_resources(settings), families=[family])
        await self._runtime.start()
        try:
            await self._runtime.loaded()
        except StartError as error:
            LOGGER.error("%s", error)
        with suppress(TimeoutError):
            async with asyncio.timeout(_OTHERS_SECONDS):
                while not (self._runtime.serving() or await self._another_serves()):  # noqa: ASYNC110
                    await asyncio.sleep(_OTHERS_SECONDS / 10)
        self._trimming = asyncio.create_task(keep_trim())

    async def check_health(self) -> None:
        """Fail if only another process can be of use: Serve then replaces this replica.

        Serve calls this once before the replica gets requests, too.

        Raises:
            DeviceLostError: The device was lost.
            StartError: Another replica serves the family, and this one cannot load it or has never seen it.
        """
        if self._runtime.lifecycle.lost.is_set():
            raise DeviceLostError("the device failed for good", retry_after_ms=None)
        present = bool(self._runtime.registry.names())
        self._was_present |= present
        removed = self._was_present and not present
        if not (self._runtime.serving() or removed) and await self._another_serves():
            raise StartError(f"{self._family} cannot be loaded here, and another replica serves it")

    async def _another_serves(self) -> bool:
        """Return whether any replica is ready; this one is not."""
        return any(await broadcast(serve.get_deployment_handle(self._family), "serving", ""))

    async def infer(self, request: bytes, seconds: float, request_id: str) -> Answer:
        """Answer an inference request within so many seconds."""
        deadline = asyncio.get_running_loop().time() + seconds
        return await _answer(self._runtime.infer(request, deadline=deadline), request_id)

    async def stream(self, request: bytes, seconds: float, request_id: str) -> AsyncGenerator[Answer]:
        """Answer an inference request with one message, or in parts if it asks for them."""
        deadline = asyncio.get_running_loop().time() + seconds
        messages: asyncio.Queue[Answer | None] = asyncio.Queue(1)

        async def run() -> None:
            work = self._runtime.stream(request, messages.put, deadline=deadline)
            await messages.put(await _answer(work, request_id))

        running = asyncio.create_task(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
                if isinstance(message, ErrorReply):
                    return
        finally:
            running.cancel()

    async def call(self, procedure: str, request: bytes, request_id: str) -> Answer:
        """Answer a request to any other unary procedure."""
        return await _answer(self._runtime.call(procedure, request), request_id)

    async def serving(self, name: str) -> bool | None:
        """Return whether a model is ready, or any if the name is empty; None if there is no such model."""
        return self._runtime.serving(name)


async def broadcast(handle: Any, method: str, *arguments: object) -> list[Any]:
    """Return what all replicas answer that do not fail; nothing if one does not answer in time."""
    try:
        answers = await handle.broadcast(method, *arguments).results_async(
            timeout_s=_ALL_REPLICAS_SECONDS, return_exceptions=True
        )
    except (TimeoutError, DeploymentUnavailableError):  # the latter while none has started
        return []
    return [answer for answer in answers if not isinstance(answer, BaseException)]


async def _answer(work: Awaitable[T], request_id: str) -> T | ErrorReply:
    try:
        return await work
    except Exception as error:
        return logged_reply(error, request_id)


def _with_resources(settings: Settings) -> Settings:
    """Return the settings with the CPUs and the GPU that Ray has assigned to this actor."""
    resources = ray.get_runtime_context().get_assigned_resources()
    # An actor without a GPU may see all of them.
    device = "cpu" if settings.device == "auto" and not resources.get("GPU") else settings.device
    threads = settings.threads or max(1, int(resources.get("CPU", 1)))
    return replace(settings, device=device, threads=threads)
