"""A server as a process: `serve` runs one until a signal and drains it, `run` gives its exit code."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NoReturn

from polyhead_server.address import warn_if_exposed
from polyhead_server.engine.allocator import give_memory_back, keep_trim
from polyhead_server.errors import StartError
from polyhead_server.observability.logs import LOGGER, flush
from polyhead_server.observability.metrics import serve_metrics
from polyhead_server.repository import remove_abandoned_copies, remove_private_copies
from polyhead_server.runtime import ALONE, Place, create_server
from polyhead_server.settings import Settings

LOST = 75
"""The exit code where the device failed for good: start it again (`EX_TEMPFAIL` of sysexits.h)."""

_LONGEST_LAST_STEPS = 10.0
"""Seconds that a server without a device may take to end."""


@dataclass(frozen=True, kw_only=True)
class Leash:
    """What ties a worker to the process above it."""

    place: Place
    lifeline: int
    """A file that can be read once the process above has ended."""
    ready: Callable[[], None]
    """Called when every model is loaded or has failed."""


async def serve(settings: Settings, leash: Leash | None = None) -> int:
    """Serves until SIGTERM or SIGINT, then drains. SIGINT ends it at once then; SIGTERM changes nothing.

    Args:
        settings: How it runs.
        leash: For a worker among several; None serves alone.

    Returns:
        The exit code: 0 when every accepted request was finished, `LOST` when the device failed, else 1.

    Raises:
        StartError: It could not start, or has nothing to serve.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    with ExitStack() as stack:
        server, _ = await create_server(settings, place=ALONE if leash is None else leash.place)
        if leash is None:
            warn_if_exposed(settings)
            stack.enter_context(serve_metrics(settings, server.registry.counters, {0: os.getpid()}))
        else:
            loop.add_reader(leash.lifeline, _abandoned, loop, leash.lifeline, stopped)
            stack.callback(loop.remove_reader, leash.lifeline)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _stop, loop, stopped, number)
        await server.start()
        trimming = asyncio.ensure_future(keep_trim())
        stack.callback(trimming.cancel)
        stopping = asyncio.ensure_future(_first(stopped, server.lifecycle.lost))
        loading = asyncio.ensure_future(server.loaded())
        try:
            await asyncio.wait((stopping, loading), return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                if leash is not None:
                    leash.ready()
            await stopping
        except StartError:
            await server.drain(0)
            raise
        finally:
            loading.cancel()
        if server.lifecycle.lost.is_set():
            LOGGER.error("the device failed for good; this process ends, and is to be started again")
            ending = asyncio.ensure_future(server.drain(0))
            await asyncio.wait((ending,), timeout=_LONGEST_LAST_STEPS)  # a run may hang on the device
            return LOST
        LOGGER.info("draining: %d requests to finish", server.lifecycle.accepted)
        finished = await server.drain(settings.drain_seconds)
        LOGGER.info("stopped")
        return 0 if finished else 1


def run(settings: Settings, leash: Leash | None = None) -> NoReturn:
    """Serves as a process of its own, and ends it with the exit code of `serve`.

    Raises:
        StartError: It could not start, or has nothing to serve.
    """
    give_memory_back()
    remove_abandoned_copies()
    code = asyncio.run(serve(settings, leash))
    # All is done. Taking the interpreter down around gRPC's and onnxruntime's threads takes a second,
    # and aborts the process where a thread is still loading.
    remove_private_copies()
    flush()
    os._exit(code)


async def _first(*events: asyncio.Event) -> None:
    """Waits for any of these."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


def _stop(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event, number: signal.Signals) -> None:
    LOGGER.info("%s received", number.name)
    # Whoever stops a process and its group sends SIGTERM twice, and a worker gets its supervisor's, too.
    # What ends a drain is another Ctrl-C.
    loop.remove_signal_handler(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    stopped.set()


def _abandoned(loop: asyncio.AbstractEventLoop, lifeline: int, stopped: asyncio.Event) -> None:
    loop.remove_reader(lifeline)
    LOGGER.warning("the process above has ended")
    stopped.set()
