"""The server without a port: a model repository, served as requests in and replies out."""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from inspect import isawaitable
from typing import TypeVar

from polyhead_proto import RPCS
from polyhead_server.engine.cpus import available_cpus
from polyhead_server.engine.devices import choose_device, in_precision
from polyhead_server.errors import StalledError, StartError
from polyhead_server.inference.inference import Inference
from polyhead_server.inference.reply import InferReply, write_reply
from polyhead_server.inference.wire import LARGE, InferRequest, parse_small
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.statistics import Statistics
from polyhead_server.repository.scanning import Scan
from polyhead_server.repository.signature import Signature
from polyhead_server.scheduling import Dispatch, Iterations, Planner, Scheduler
from polyhead_server.scheduling.execution import EngineThreads
from polyhead_server.serving.budget import Budget, Reservation
from polyhead_server.serving.lifecycle import Lifecycle
from polyhead_server.serving.loading import Loaded, Loader
from polyhead_server.serving.procedures import Procedures
from polyhead_server.serving.reconciler import Reconciler
from polyhead_server.serving.registry import Model, Registry
from polyhead_server.settings import Settings

_CLOSING_SECONDS = 1.0
"""A run cannot be interrupted everywhere, so closing does not wait for one longer than this."""

UntilSent = Callable[[Callable[..., None]], object]
R = TypeVar("R")


class Runtime:
    """Serve a model repository to callers in this process. Lives on one event loop.

    ```python
    async with Runtime(settings) as runtime:
        await runtime.loaded()
        reply = await runtime.infer(request)  # bytes of a ModelInferRequest, of a ModelInferResponse
    ```

    Nothing here knows a port: `polyhead_server.grpc` puts a gRPC server in front. Settings that concern
    connections, tokens, workers, metrics and traces have no effect here.

    Args:
        settings: The repository, the device and the limits.
        families: Serve only these families of the repository; none is all.

    Raises:
        DeviceError: The requested device does not work.
    """

    def __init__(self, settings: Settings, *, families: Sequence[str] = ()) -> None:
        self.settings = settings
        self.device = replace(
            in_precision(choose_device(settings.device), settings.compute_precision),
            packed=settings.weights == "packed",
            memory_limit=settings.gpu_memory // settings.workers,
        )
        self.registry = Registry(self._changed)
        self.budget = Budget(settings.max_held_bytes, self.registry.unattributed)
        self.lifecycle = Lifecycle(self.registry, self.budget, self._changed)
        threads = settings.threads or available_cpus()
        self._workers = ThreadPoolExecutor(threads + 1, thread_name_prefix="messages")
        # On a GPU the smallest run waits for the largest, and would block the event loop meanwhile.
        self._iterations = Iterations(enabled=self.device.host_threads)
        self._inference = Inference(self.registry, settings, self._workers)
        loader = Loader(device=self.device, threads=threads, lanes=settings.lanes, lost=self._lose_device)
        self._reconciler = Reconciler(
            models=settings.models,
            registry=self.registry,
            policy=settings.versions,
            loads=loader.load,
            build=self._build,
            retired=self._inference.on_retired,
            side_by_side=threads,
            only=families,
        )
        self._procedures = Procedures(self.registry, self.lifecycle, self._reconciler, settings)
        self._change = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loading: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None
        self._closing: asyncio.Future[list[None]] | None = None

    # ---- Start -------------------------------------------------------------------------------------

    async def __aenter__(self) -> "Runtime":
        await self.start()
        return self

    async def start(self) -> None:
        """Read the repository's manifests and start to load its models. A second call does nothing.

        Raises:
            StartError: The repository is missing or empty.
        """
        if self._loading is not None:
            return
        self._loop = asyncio.get_running_loop()
        found = await self._reconciler.look(may_be_empty=self.settings.repository_mode != "none")
        self.lifecycle.sample()
        self._loading = asyncio.ensure_future(self._load(found))
        self._loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # for `loaded`

    async def loaded(self) -> None:
        """Wait until every model is loaded or has failed.

        Raises:
            StartError: All of them failed, or the runtime was closed.
        """
        if self._loading is None:
            raise RuntimeError("a runtime must be started before it can load: enter it with `async with`")
        await asyncio.wait((self._loading,))
        if self._loading.cancelled():
            raise StartError("the runtime was closed before its models were loaded")
        self._loading.result()

    async def _load(self, found: Mapping[str, Scan]) -> None:
        """Load the models found, and then follow the repository if it is to be polled."""
        await self._reconciler.reconcile(found)
        is_empty = not self.registry.models() and not self.lifecycle.draining.is_set()
        if is_empty and self.settings.repository_mode == "none":
            reasons = (f"{slot.name} {slot.version}: {slot.reason}" for slot in self.registry.slots())
            raise StartError(f"no model could be loaded: {'; '.join(reasons)}")
        self.lifecycle.finish_loading()
        if self.settings.repository_mode == "poll":
            self._polling = asyncio.ensure_future(self._reconciler.watch(self.settings.poll_seconds))

    # ---- Models -----------------------------------------------------------------------------------

    def _build(self, loaded: Loaded) -> Model:
        """Build a model that can answer requests."""
        signature = loaded.signature
        statistics = Statistics(signature.name, signature.version, metrics=self.registry.metrics)
        scheduler = Scheduler(
            Dispatch(
                loaded.lanes,
                wide=loaded.wide,
                planner=Planner(
                    packed=signature.packed,
                    max_tokens=self.settings.max_batch_tokens or self.device.batch_tokens,
                    most_rows=lru_cache(maxsize=1024)(partial(self._most_rows, signature)),
                ),
            ),
            signature=signature,
            limits=self.settings,
            iterations=self._iterations,
            observer=statistics,
            threads=EngineThreads(f"engine-{signature.name}", loaded.lanes.count, loaded.initializer),
            on_broken=lambda: self.registry.fail(
                signature.name, signature.version, "its scheduler failed: restart the server, and see its log"
            ),
        )
        if not self.device.host_threads:
            scheduler.start()
        return Model(**vars(loaded), scheduler=scheduler, device=self.device, statistics=statistics)

    def _most_rows(self, signature: Signature, longest: int, at_once: int) -> int:
        """Return the largest B of a batch at T, of which so many run at once and share the memory."""
        weights = sum(file.bytes for file in signature.manifest.files.values())  # the other files are small
        left = self.device.memory_limit - weights if self.device.memory_limit else math.inf
        shared = min(self.settings.max_working_bytes, left) // at_once
        return int(shared // max(1, signature.working_bytes(1, longest)))

    # ---- Requests ----------------------------------------------------------------------------------

    async def infer(
        self,
        request: bytes,
        *,
        deadline: float = math.inf,
        until_sent: UntilSent | None = None,
    ) -> bytes:
        """Answer an inference request.

        Args:
            request: A `ModelInferRequest`.
            deadline: When the caller stops waiting, in the event loop's time.
            until_sent: For a large reply, called with a function that the caller must call, with any
                arguments, once the reply has been sent: its memory counts as held until then. Without it, and
                if it raises, memory counts as held until this returns.

        Returns:
            A `ModelInferResponse`.

        Raises:
            RequestError: The caller gets the reason.
            EngineError: The engine failed.
        """
        with self.lifecycle.accept(), self.budget.reserve(len(request)) as held:
            reply = await self._inference.answer(
                request, write_reply, deadline=self.deadline(deadline), held=held
            )
            if until_sent is not None and len(reply) >= LARGE:  # a smaller one is gone when gRPC has it
                held.keep(until_sent)
            return reply

    async def stream(
        self,
        request: bytes,
        send: Callable[[bytes], Awaitable[None]],
        *,
        deadline: float = math.inf,
        until_sent: UntilSent | None = None,
    ) -> None:
        """Answer an inference request with one message, or in parts if it asks for them.

        Args:
            request: A `ModelInferRequest`.
            send: Sends a `ModelStreamInferResponse`. The next part is made when it returns. It may raise
                `StalledError`.
            deadline: When the caller stops waiting, in the event loop's time.
            until_sent: Where a reader has stalled, called with a function that the caller must call once
                the message is gone: its memory counts as held until then.

        Raises:
            RequestError: The caller gets the reason.
            EngineError: The engine failed.
        """
        write = partial(write_reply, streamed=True)
        with self.lifecycle.accept(), self.budget.reserve(len(request)) as held:
            try:
                await send(
                    await self._inference.answer(
                        request, write, deadline=self.deadline(deadline), held=held, send=send
                    )
                )
            except StalledError as error:
                if until_sent is not None:
                    held.add(min(0, error.size - held.bytes))
                    held.keep(until_sent)
                raise

    async def answer(
        self,
        request: InferRequest,
        keep: Callable[[InferReply], R],
        *,
        deadline: float,
        held: Reservation,
    ) -> R:
        """Answer an inference request that did not come as a message of the protocol.

        Args:
            request: The request.
            keep: Returns what is kept of the reply, which is not to refer to memory of its batch, as `detach`
                does; may be called in any thread.
            deadline: When the caller stops waiting, in the event loop's time.
            held: Has the request's bytes. Whoever reserved them releases them once the reply has been sent.

        Raises:
            RequestError: The caller gets the reason.
            EngineError: The engine failed.
        """
        with self.lifecycle.accept():
            held.arrived()
            return await self._inference.answer(request, keep, deadline=self.deadline(deadline), held=held)

    async def call(self, procedure: str, request: bytes) -> bytes:
        """Answer a request to any other unary procedure of the service.

        Args:
            procedure: Its name, such as `ModelMetadata`.
            request: The procedure's request message.

        Returns:
            The procedure's response message.

        Raises:
            UnsupportedError: There is no such procedure.
            RequestError: The caller gets the reason.
        """
        answer = self._procedures.find(procedure)(parse_small(RPCS[procedure].request, request))
        return (await answer if isawaitable(answer) else answer).SerializeToString()

    def deadline(self, deadline: float = math.inf) -> float:
        """Return when a request that arrives now must be answered: `deadline`, or our limit if earlier."""
        return min(deadline, asyncio.get_running_loop().time() + self.settings.max_request_seconds)

    # ---- Health ------------------------------------------------------------------------------------

    def serving(self, name: str = "") -> bool | None:
        """Return whether a model is ready for requests, or the whole server if the name is empty.

        None means that there is no such model.
        """
        if not name:
            return self.lifecycle.ready
        if name not in self.registry.names():
            return None
        return self.registry.is_ready(name) and not self.lifecycle.draining.is_set()

    async def watch(self, name: str = "") -> AsyncGenerator[bool | None]:
        """Yield `serving(name)` now and after each change, until the runtime has drained."""
        last: object = ...
        while True:
            change = self._change
            if (status := self.serving(name)) != last:
                yield status
                last = status
            if change is not self._change:
                continue  # it changed while the reader was slow
            if self._closing is not None:
                return
            await change.wait()

    def _changed(self) -> None:
        self.lifecycle.show()
        change, self._change = self._change, asyncio.Event()
        change.set()

    def _lose_device(self) -> None:
        """Drain, because the device is lost. Called in any thread."""
        with suppress(RuntimeError):  # the loop has been closed
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self.lifecycle.lose_device)

    # ---- End ---------------------------------------------------------------------------------------

    async def drain(self, seconds: float) -> bool:
        """Reject new requests and finish the accepted ones. Those that are not done in time are rejected.

        Args:
            seconds: How long accepted requests may take.

        Returns:
            Whether every accepted request was finished.
        """
        self.lifecycle.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.lifecycle.wait_until_idle()
        unfinished = self.lifecycle.accepted
        if unfinished:
            LOGGER.warning("%d requests were not finished in %g s", unfinished, seconds)
        self._stop_models()
        return not unfinished

    async def close(self) -> None:
        """Drain, unless that is done, for as long as the settings say; then stop all threads."""
        if self._closing is None:
            await self.drain(self.settings.drain_seconds)
        await asyncio.wait((self._stop_models(),), timeout=_CLOSING_SECONDS)
        self.lifecycle.stop_sampling()
        self.registry.metrics.close()
        self._workers.shutdown(wait=False)

    def _stop_models(self) -> asyncio.Future[list[None]]:
        """Stop loading, reject the requests that are left, and end every watch. Once."""
        if self._closing is None:
            for task in (self._loading, self._polling):
                if task is not None:
                    task.cancel()
            schedulers = (model.scheduler.close() for model in self.registry.models())
            self._closing = asyncio.gather(self._reconciler.close(), *schedulers)
            self._changed()
        return self._closing

    async def __aexit__(self, *_: object) -> None:
        await self.close()
