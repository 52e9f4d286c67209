"""A gRPC server in front of a runtime."""

import asyncio
from threading import Thread

import grpc

from polyhead_server.address import bind, format_address
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.request_log import RequestLog
from polyhead_server.observability.tracing import open_tracer
from polyhead_server.runtime import Runtime
from polyhead_server.settings import Settings
from polyhead_server.transport.accept_queue import AcceptQueue
from polyhead_server.transport.access import guard_of
from polyhead_server.transport.call import INFERENCE
from polyhead_server.transport.grpcio_check import check_grpcio
from polyhead_server.transport.handlers import InferenceService, NotOffered
from polyhead_server.transport.health import Health
from polyhead_server.transport.options import server_options
from polyhead_server.transport.reading import request_reader, stream_reader
from polyhead_server.transport.reflection import Reflection
from polyhead_server.transport.tls import server_credentials

# Calls that arrive while gRPC closes are cut off without a status of ours, so callers that have just been
# answered get a moment to learn that the server drains.
_FAREWELL_SECONDS = 0.25
_LOOK_SECONDS = 0.05
_LAST_REPLIES_SECONDS = 1.0
_LAST_TRACES_SECONDS = 1.0


class GrpcServer:
    """Serve a runtime over gRPC. `create_server` makes both.

    Args:
        runtime: Answers requests. The server starts and closes it.
        reuse_port: Share the port with other processes; each gets some of the connections.
        listen_when_loaded: Listen only when the models are loaded, since others answer on the port meanwhile.

    Raises:
        StartError: The port is taken, or the settings of TLS or tokens cannot be used.
    """

    def __init__(
        self, runtime: Runtime, *, reuse_port: bool = False, listen_when_loaded: bool = False
    ) -> None:
        settings = runtime.settings
        self.runtime = runtime
        self.port = settings.port
        self._host = settings.host
        self._credentials = server_credentials(settings)
        self._tracer = open_tracer()
        self.request_log = RequestLog(self._tracer)
        self._guard = guard_of(settings)
        requests, streams = request_reader(settings), stream_reader(settings)
        self._methods = {
            **InferenceService(runtime, self.request_log).methods(requests, streams),
            **Health(runtime).methods(requests),
            **Reflection().methods(streams),
        }
        self._grpc = grpc.aio.server(
            handlers=[NotOffered()], options=server_options(settings, reuse_port=reuse_port)
        )
        self._listen_when_loaded = listen_when_loaded
        self._queues: list[AcceptQueue] = []
        self._serving: asyncio.Task[None] | None = None
        if not listen_when_loaded:
            self._bind()

    async def start(self) -> None:
        """Start to load the models, and listen.

        Raises:
            StartError: The repository is missing or empty, or calls cannot be accepted with this grpcio.
        """
        await self.runtime.start()
        if not self._listen_when_loaded:
            await self._listen()
            LOGGER.info("listening on %s; loading models", format_address(self._host, self.port))
        self._serving = asyncio.ensure_future(self._serve())
        self._serving.add_done_callback(lambda task: task.cancelled() or task.exception())  # for `loaded`

    async def loaded(self) -> None:
        """Wait until every model is loaded or has failed, and the server listens.

        Raises:
            StartError: All models failed, or the port is taken, or the server was closed.
        """
        if self._serving is None:
            raise RuntimeError("a server must be started before its models can be loaded")
        await asyncio.shield(self._serving)

    async def drain(self, seconds: float) -> bool:
        """Reject new requests, finish the accepted ones, and stop. What is not done in time is rejected.

        Args:
            seconds: How long accepted requests may take.

        Returns:
            Whether every accepted request was finished.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        finished = await self.runtime.drain(seconds)
        await asyncio.sleep(max(0.0, min(_FAREWELL_SECONDS, deadline - loop.time())))
        # The last replies may still be on their way to their readers. Unused streams are not waited for.
        left = deadline - loop.time() if self.runtime.budget.answering else 0.0
        for queue in self._queues:
            queue.stop_accepting()
        grace = max(left, _LAST_REPLIES_SECONDS)
        await asyncio.gather(self._grpc.stop(grace), *(queue.stop(grace) for queue in self._queues))
        # Replies over HTTP; nothing says when the last of them is gone.
        while self.runtime.budget.answering and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        await self.runtime.close()
        if self._tracer is not None:  # whose collector may be gone
            sending = Thread(target=self._tracer.close, name="traces", daemon=True)
            sending.start()
            await asyncio.to_thread(sending.join, _LAST_TRACES_SECONDS)
        return finished

    def _bind(self) -> None:
        self.port = bind(self._grpc, self._host, self.port, self._credentials)

    async def _listen(self) -> None:
        """Accept calls: those of inference by themselves, so that probes do not wait behind them."""
        await check_grpcio()
        for inference in (True, False):
            methods = {name: call for name, call in self._methods.items() if (name in INFERENCE) == inference}
            statistics = self.runtime.registry.unattributed
            self._queues.append(AcceptQueue(self._grpc, methods, guard=self._guard, statistics=statistics))
        await self._grpc.start()
        for queue in self._queues:
            queue.start()

    async def _serve(self) -> None:
        await self.runtime.loaded()
        if self._listen_when_loaded:
            self._bind()
            await self._listen()
        models = [model.signature for model in self.runtime.registry.models()]
        if not models:
            LOGGER.warning(
                "nothing to serve yet: --models %s has no model; polyhead export writes them there",
                self.runtime.settings.models,
            )
        LOGGER.info(
            "serving %s on %s with %s (%s)",
            ", ".join(f"{signature.name} v{signature.version}" for signature in models) or "no model",
            format_address(self._host, self.port),
            self.runtime.device.provider,
            self.runtime.device.reason,
        )


async def create_server(
    settings: Settings,
    *,
    reuse_port: bool = False,
    listen_when_loaded: bool = False,
) -> tuple[GrpcServer, int]:
    """Create a server that is bound to its port, and neither listens nor loads yet.

    Args:
        settings: How the server runs.
        reuse_port: Share the port with other processes.
        listen_when_loaded: Bind the port only when the models are loaded.

    Returns:
        The server and its port, which the system chooses if the settings say 0.

    Raises:
        StartError: The port is taken, or settings contradict each other.
        DeviceError: The requested device does not work.
    """
    runtime = Runtime(settings)
    server = GrpcServer(runtime, reuse_port=reuse_port, listen_when_loaded=listen_when_loaded)
    return server, server.port
