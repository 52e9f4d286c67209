"""The server as a whole: `create_server` builds it; `polyhead_server.process` runs it."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Thread

import grpc

from polyhead_server.address import bind, format_address
from polyhead_server.engine.cpus import available_cpus
from polyhead_server.engine.devices import Device, choose_device
from polyhead_server.errors import StartError
from polyhead_server.inference.inference import Inference
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.request_log import RequestLog
from polyhead_server.observability.shared_counters import SharedCounters
from polyhead_server.observability.statistics import Statistics
from polyhead_server.observability.tracing import open_tracer
from polyhead_server.repository import Scan, VersionFolder
from polyhead_server.scheduling import Limits, Scheduler, layout_of
from polyhead_server.scheduling.cache import default_folder
from polyhead_server.scheduling.tuning import Tuning
from polyhead_server.serving.budget import Budget
from polyhead_server.serving.catalogue import Gauges
from polyhead_server.serving.lifecycle import Lifecycle
from polyhead_server.serving.loading import Failed, Loaded, load
from polyhead_server.serving.reconciler import Reconciler, look
from polyhead_server.serving.registry import Model, Registry
from polyhead_server.settings import Settings
from polyhead_server.transport.access import guards
from polyhead_server.transport.handlers import Service
from polyhead_server.transport.health import Health
from polyhead_server.transport.management import Management
from polyhead_server.transport.options import server_options
from polyhead_server.transport.reception import Reception
from polyhead_server.transport.reflection import add_reflection
from polyhead_server.transport.tls import server_credentials

_LAST_ANSWERS_SECONDS = 1.0
_CLOSING_SECONDS = 1.0
# Calls that arrive while gRPC closes are cut off without a status of ours, so callers that had just been
# answered get a moment to hear that the server drains.
_FAREWELL_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class Place:
    """A server's place among others, its fellow workers."""

    counters: SharedCounters | None = None
    """Where all of them count; None is a counters of its own."""
    shared: bool = False
    """The others listen on its port, too."""
    late: bool = False
    """It joins them there when it has loaded: those that are ready answer meanwhile."""


ALONE = Place()


class Server:
    """A server that is bound to its port. `create_server` makes one.

    Args:
        settings: How it runs.
        device: Where the models run.
        found: What lies in the repository.
        registry: The models, none yet.
        place: Its place among others.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        device: Device,
        found: Scan,
        registry: Registry,
        place: Place,
    ) -> None:
        self.registry = registry
        self.lifecycle = Lifecycle(registry)
        self._settings = settings
        self._device = device
        self._threads = settings.threads or available_cpus()
        self._loop = asyncio.get_running_loop()
        self._workers = ThreadPoolExecutor(self._threads + 1, thread_name_prefix="messages")
        self._health = Health(registry, self.lifecycle)
        self._budget = Budget(settings.max_held_bytes, registry.unattributed)
        self._gauges = Gauges(registry, self._budget, self.lifecycle)
        registry.on_change = self.lifecycle.on_change = self._changed
        self._loading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._late = place.late
        self._credentials = server_credentials(settings)
        self._grpc = grpc.aio.server(
            interceptors=(
                *guards(settings, registry.unattributed),
                Reception(settings, registry.unattributed),
            ),
            options=server_options(settings, reuse_port=place.shared),
        )
        inference = Inference(registry, settings, self._workers)
        self.reconciler = Reconciler(
            settings.models,
            policy=settings.versions,
            registry=registry,
            load=self._load,
            build=self._build,
            retired=inference.forget,
        )
        self._found = found
        self.reconciler.declare(found)
        self._reconciling: asyncio.Task[None] | None = None
        self._tracer = open_tracer()
        service = Service(
            registry,
            self.lifecycle,
            inference,
            settings,
            budget=self._budget,
            observation=RequestLog(self._tracer),
            management=Management(self.reconciler, settings),
        )
        self._grpc.add_generic_rpc_handlers((service.handler(), self._health.handler()))
        add_reflection(self._grpc)
        self.port = settings.port
        if not self._late:
            self._bind()

    async def start(self) -> None:
        """Listens, and starts to load the models."""
        if not self._late:
            await self._grpc.start()
            LOGGER.info("listening on %s; loading models", format_address(self._settings.host, self.port))
        self._gauges.sample()
        self._reconciling = asyncio.get_running_loop().create_task(self._reconcile())
        self._reconciling.add_done_callback(self._stopped_reconciling)

    async def loaded(self) -> None:
        """Waits until every model is loaded or has failed.

        Raises:
            StartError: All of them failed.
        """
        await asyncio.shield(self._loading)

    async def drain(self, seconds: float) -> bool:
        """Refuses what is new, finishes what was accepted, and stops.

        Args:
            seconds: How long accepted requests may take. What is not done by then is refused.

        Returns:
            Whether every accepted request was finished.
        """
        self.lifecycle.drain()
        finished = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                await self.lifecycle.idle()
                await asyncio.sleep(_FAREWELL_SECONDS)
                await self.lifecycle.idle()
        except TimeoutError:
            finished = not self.lifecycle.accepted
        if not finished:
            LOGGER.warning("%d requests were not finished in %g s", self.lifecycle.accepted, seconds)
        self._health.close()
        if self._reconciling is not None:
            self._reconciling.cancel()
        closing = asyncio.gather(
            self.reconciler.close(), *(model.scheduler.close() for model in self.registry.models())
        )
        # What was answered last may still be on its way out. Streams that nobody uses are not waited for.
        left = deadline - loop.time() if self._budget.bytes else 0.0
        await self._grpc.stop(max(left, _LAST_ANSWERS_SECONDS))
        # A run cannot be interrupted everywhere, and a collector of traces may be gone.
        await asyncio.wait((closing,), timeout=_CLOSING_SECONDS)
        self._gauges.stop()
        self._workers.shutdown(wait=False)
        if self._tracer is not None:
            sending = Thread(target=self._tracer.close, name="traces", daemon=True)
            sending.start()
            await asyncio.to_thread(sending.join, _CLOSING_SECONDS)
        return finished

    def _bind(self) -> None:
        self.port = bind(self._grpc, self._settings.host, self._settings.port, self._credentials)

    def _changed(self) -> None:
        self._health.changed()
        self._gauges.changed()

    async def _reconcile(self) -> None:
        """Loads what there is, and then watches for changes."""
        await self.reconciler.reconcile(self._found)
        if self._settings.repository_mode == "none":
            await self.reconciler.wait_for_any()
        self._finish_loading()
        if self._settings.repository_mode == "poll":
            await self.reconciler.watch(self._settings.poll_seconds)

    def _load(self, version: VersionFolder) -> Iterator[Loaded | Failed]:
        """Runs in a thread."""
        return load(
            version,
            device=self._device,
            threads=self._threads,
            tuning=_tuning(self._settings),
            runs=self._runs,
            lost=self._lost,
        )

    def _runs(self, device: Device) -> int:
        """How many batches of a model are computed at once."""
        return self._settings.runs or device.default_runs(self._threads)

    def _lost(self) -> None:
        """Called in any thread."""
        with suppress(RuntimeError):  # the loop is closed: the server has stopped meanwhile
            self._loop.call_soon_threadsafe(self.lifecycle.lose_device)

    def _build(self, result: Loaded) -> Model:
        signature = result.signature
        statistics = Statistics(self.registry.counters, signature.name, signature.version)
        scheduler = Scheduler(
            result.engine,
            name=signature.name,
            layout=layout_of(signature),
            costs=result.costs,
            limits=Limits(
                max_queued_tokens=self._settings.max_queued_tokens,
                max_wait_seconds=self._settings.max_wait_seconds,
                runs=self._runs(result.engine.device),
            ),
            single_thread=result.single_thread,
            # On a GPU the smallest work waits for the largest that runs there, and the event loop with it.
            inline=self._device.host_threads,
            observer=statistics,
            on_broken=lambda: self.registry.fail(
                signature.name, signature.version, "its scheduler failed: restart the server, and see its log"
            ),
        )
        return Model(
            signature=signature,
            scheduler=scheduler,
            tokeniser=result.tokeniser,
            provider=result.engine.device.provider,
            on_gpu=not result.engine.device.host_memory,
            close=result.close,
            statistics=statistics,
        )

    def _finish_loading(self) -> None:
        if self._loading.done():
            return
        models = self.registry.models()
        may_be_empty = self._settings.repository_mode != "none" or self.lifecycle.draining.is_set()
        if not models and not may_be_empty:
            reasons = "; ".join(
                f"{slot.name} {slot.version}: {slot.reason}" for slot in self.registry.slots()
            )
            self._loading.set_exception(StartError(f"no model could be loaded: {reasons}"))
            self._loading.exception()  # whoever waits gets it; nobody has to
            return
        self._opening = asyncio.ensure_future(self._open(models))

    def _stopped_reconciling(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._loading.done():
            self._loading.set_exception(error)

    async def _open(self, models: list[Model]) -> None:
        """Joins the others on the port, where it has not yet, and says that it is ready."""
        if self._late:
            try:
                self._bind()
                await self._grpc.start()
            except StartError as error:
                self._loading.set_exception(error)
                return
        self._loading.set_result(None)
        self.lifecycle.loaded()
        LOGGER.info(
            "serving %s on %s with %s (%s)",
            ", ".join(f"{model.signature.name} v{model.signature.version}" for model in models),
            format_address(self._settings.host, self.port),
            self._device.provider,
            self._device.reason,
        )


async def create_server(
    settings: Settings, *, choose: Callable[[str], Device] = choose_device, place: Place = ALONE
) -> tuple[Server, int]:
    """Builds a server that is bound to its port, and neither listens nor loads yet.

    Args:
        settings: How it runs.
        choose: Decides where models run; tests have their own.
        place: Its place among others.

    Returns:
        The server and its port, which was chosen where the settings say 0.

    Raises:
        StartError: The repository is missing or empty, the port is taken.
        DeviceError: The device that was asked for does not work.
    """
    if settings.repository_mode == "explicit" and settings.management_token_file is None:
        raise StartError(
            "--repository-mode explicit must come with --management-token-file: "
            "who may load and unload models needs a token"
        )
    found = await look(settings.models, may_be_empty=settings.repository_mode != "none")
    device = choose(settings.device)
    device = replace(
        device,
        packed=settings.weights == "packed",
        memory_limit=settings.gpu_memory,
    )
    server = Server(
        settings, device=device, found=found, registry=Registry(counters=place.counters), place=place
    )
    return server, server.port


def _tuning(settings: Settings) -> Tuning:
    return Tuning(
        seconds=settings.tuning_seconds,
        workers=settings.workers,
        cache=settings.cache_dir or default_folder(),
        max_batch_tokens=settings.max_batch_tokens,
        max_working_bytes=settings.max_working_bytes,
    )
