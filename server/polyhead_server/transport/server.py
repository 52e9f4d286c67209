"""A gRPC server in front of a runtime."""

import asyncio
from collections.abc import Mapping
from functools import partial
from threading import Thread

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from polyhead_proto import FILE, SERVICE
from polyhead_server.address import bind, format_address
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.request_log import RequestLog
from polyhead_server.observability.shared_counters import SharedCounters
from polyhead_server.observability.tracing import open_tracer
from polyhead_server.runtime import Runtime
from polyhead_server.settings import Settings
from polyhead_server.transport.accept_queue import AcceptQueue, Open, unusable_reason
from polyhead_server.transport.accepted_call import StreamCall, UnaryCall
from polyhead_server.transport.access import guards
from polyhead_server.transport.call import INFER, STREAM_INFER
from polyhead_server.transport.handlers import InferenceService
from polyhead_server.transport.health import HEALTH, Health
from polyhead_server.transport.options import server_options
from polyhead_server.transport.reading import ReadingInterceptor, RequestReader, stream_reader
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
        statistics = runtime.registry.unattributed
        self.runtime = runtime
        self.port = settings.port
        self._host = settings.host
        self._credentials = server_credentials(settings)
        self._tracer = open_tracer()
        self._guards = guards(settings, statistics)
        self._requests = RequestReader(settings, statistics)
        self._streams = stream_reader(settings, statistics)
        self._grpc = grpc.aio.server(
            interceptors=(*self._guards, ReadingInterceptor(self._requests, self._streams)),
            options=server_options(settings, reuse_port=reuse_port),
        )
        self.request_log = RequestLog(self._tracer)
        self._inference = InferenceService(runtime, self.request_log)
        self._grpc.add_generic_rpc_handlers((self._inference.handler(), Health(runtime).handler()))
        _add_reflection(self._grpc)
        self._listen_when_loaded = listen_when_loaded
        self._accept_queue: AcceptQueue | None = None
        self._serving: asyncio.Task[None] | None = None
        if not listen_when_loaded:
            self._bind()

    async def start(self) -> None:
        """Start to load the models, and listen.

        Raises:
            StartError: The repository is missing or empty.
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
        await (self._accept_queue or self._grpc).stop(max(left, _LAST_REPLIES_SECONDS))
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
        """Accept calls; inference by a queue of its own, if that works here."""
        if self.runtime.settings.accept_queue == "auto":
            if reason := await unusable_reason():
                LOGGER.warning("inference calls are accepted one by one, by grpc.aio (%s)", reason)
            else:
                infer, stream = self._inference.infer, self._inference.stream_infer
                methods: Mapping[str, Open] = {
                    INFER: partial(UnaryCall, answer=infer, reader=self._requests),
                    STREAM_INFER: partial(StreamCall, answer=stream, reader=self._streams),
                }
                self._accept_queue = AcceptQueue(self._grpc, methods, guards=self._guards)
        await self._grpc.start()
        if self._accept_queue is not None:
            self._accept_queue.start()

    async def _serve(self) -> None:
        await self.runtime.loaded()
        if self._listen_when_loaded:
            self._bind()
            await self._listen()
        models = (model.signature for model in self.runtime.registry.models())
        LOGGER.info(
            "serving %s on %s with %s (%s)",
            ", ".join(f"{signature.name} v{signature.version}" for signature in models),
            format_address(self._host, self.port),
            self.runtime.device.provider,
            self.runtime.device.reason,
        )


async def create_server(
    settings: Settings,
    *,
    counters: SharedCounters | None = None,
    reuse_port: bool = False,
    listen_when_loaded: bool = False,
) -> tuple[GrpcServer, int]:
    """Create a server that is bound to its port, and neither listens nor loads yet.

    Args:
        settings: How the server runs.
        counters: Where statistics are counted; None makes new ones.
        reuse_port: Share the port with other processes.
        listen_when_loaded: Bind the port only when the models are loaded.

    Returns:
        The server and its port, which the system chooses if the settings say 0.

    Raises:
        StartError: The port is taken, or settings contradict each other.
        DeviceError: The requested device does not work.
    """
    runtime = Runtime(settings, counters=counters)
    server = GrpcServer(runtime, reuse_port=reuse_port, listen_when_loaded=listen_when_loaded)
    return server, server.port


def _add_reflection(server: grpc.aio.Server) -> None:
    """Let tools such as grpcurl ask the server for its services and messages.

    grpcio's reflection looks into one pool only, so this one holds every service. It is private, as that of
    the messages is.
    """
    pool = descriptor_pool.DescriptorPool()
    for file in (FILE, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        pool.AddSerializedFile(file.serialized_pb)
    reflection.enable_server_reflection((SERVICE, HEALTH, reflection.SERVICE_NAME), server, pool=pool)
