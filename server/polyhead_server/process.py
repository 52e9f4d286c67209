"""A server as a process: `serve` runs one until a signal and drains it, `run` exits with its code."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import NoReturn, Protocol

from polyhead_server.address import warn_if_exposed
from polyhead_server.engine.allocator import give_memory_back, keep_trim
from polyhead_server.engine.devices import flush_denormals
from polyhead_server.errors import StartError
from polyhead_server.grpc.server import GrpcServer
from polyhead_server.http.listener import HttpServer, announce
from polyhead_server.observability import metrics
from polyhead_server.observability.logs import LOGGER, flush
from polyhead_server.repository.copies import remove_abandoned_copies, remove_private_copies
from polyhead_server.settings import Settings

LOST = 75
"""The exit code if the device failed for good: start the process again (`EX_TEMPFAIL` of sysexits.h)."""

_LONGEST_END_SECONDS = 10.0
"""How long a server without a device may take to end: a run may hang on the device."""


class Worker(Protocol):
    """What ties this process to a supervisor, and to the other workers on its port."""

    number: int
    """Its own, from 0."""
    restarts: int
    """How often the worker has been replaced. A replacement listens once it has loaded: others answer."""
    lifeline: int
    """A file that becomes readable when the supervisor ends."""

    def ready(self) -> None:
        """Report from now on that every model is loaded or has failed."""

    async def keep_reporting(self) -> None:
        """Report regularly until cancelled: whoever misses reports knows that the event loop stands still."""


async def serve(settings: Settings, worker: Worker | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Another SIGINT ends the drain at once; SIGTERM does not.

    Args:
        settings: How the server runs.
        worker: What ties it to its supervisor if it is one of several workers.

    Returns:
        The exit code: 0 if every accepted request was finished, `LOST` if the device failed, else 1. It is
        also 1 if HTTP has failed: the server then drains, since its probes are answered no longer.

    Raises:
        StartError: The server cannot start, or has nothing to serve.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def supervisor_ended(lifeline: int) -> None:
        loop.remove_reader(lifeline)
        LOGGER.warning("the supervisor has ended")
        stopped.set()

    def stop(number: signal.Signals) -> None:
        LOGGER.info("%s received", number.name)
        # To stop a process and its group sends SIGTERM twice, and a worker also gets its supervisor's.
        # Only another Ctrl-C ends a drain.
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stopped.set()

    async with AsyncExitStack() as stack:
        replaces = worker is not None and worker.restarts > 0
        server = GrpcServer(settings, reuse_port=worker is not None, listen_when_loaded=replaces)
        if worker is None:
            metrics.start()
            warn_if_exposed(settings)
        else:
            metrics.start(worker.number, worker.restarts)
            loop.add_reader(worker.lifeline, supervisor_ended, worker.lifeline)
            stack.callback(loop.remove_reader, worker.lifeline)
            # Not before: it may take long to choose a device, which happens on the event loop.
            stack.callback(asyncio.ensure_future(worker.keep_reporting()).cancel)
        http = HttpServer(
            settings,
            server.runtime if settings.http else None,
            server.request_log,
            reuse_port=worker is not None,
        )
        stack.push_async_callback(http.stop, 0)
        if not replaces:
            http.start()
            if worker is None:
                announce(settings, http.port)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        trimming = asyncio.ensure_future(keep_trim())
        stack.callback(trimming.cancel)
        await server.start()

        def on_ready() -> None:
            if replaces:
                http.start()
            if worker is not None:
                worker.ready()

        await _run_until(server, (stopped, http.failed, server.runtime.lifecycle.lost), on_ready)
        return await _end(server, http, settings.drain_seconds) or int(http.failed.is_set())


def prepare(device: str) -> None:
    """Prepare this process for a runtime on a device, as `--device` names it."""
    give_memory_back()
    if device != "openvino":  # whose gathers would take small integers, such as token ids, for zero
        flush_denormals()
    remove_abandoned_copies()


def run(settings: Settings, worker: Worker | None = None) -> NoReturn:
    """Serve as a process of its own, and exit with the code of `serve`.

    Raises:
        StartError: The server cannot start, or has nothing to serve.
    """
    prepare(settings.device)
    code = asyncio.run(serve(settings, worker))
    # All work is done. To tear the interpreter down around gRPC's and onnxruntime's threads takes a second,
    # and aborts the process if a thread is still loading.
    remove_private_copies()
    flush()
    os._exit(code)


async def _run_until(server: GrpcServer, ends: Iterable[asyncio.Event], on_ready: Callable[[], None]) -> None:
    """Wait until the server is to end: it was stopped, or HTTP or its device has failed.

    Raises:
        StartError: There is nothing to serve; the server has ended.
    """
    loading = asyncio.ensure_future(server.loaded())
    ended = [asyncio.ensure_future(event.wait()) for event in ends]
    try:
        await asyncio.wait((loading, *ended), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            on_ready()
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    except StartError:
        await server.drain(0)
        raise
    finally:
        for task in (loading, *ended):
            task.cancel()


async def _end(server: GrpcServer, http: HttpServer, drain_seconds: float) -> int:
    """Drain a server and return the exit code."""
    lifecycle = server.runtime.lifecycle
    if lifecycle.lost.is_set():
        LOGGER.error("the device failed for good; this process ends, and is to be started again")
        await asyncio.wait((asyncio.ensure_future(server.drain(0, http.stop)),), timeout=_LONGEST_END_SECONDS)
        return LOST
    LOGGER.info("draining: %d requests to finish", lifecycle.accepted)
    finished = await server.drain(drain_seconds, http.stop)
    LOGGER.info("stopped")
    return 0 if finished else 1
