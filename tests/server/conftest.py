"""A real server on a free port, in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from polyhead_server import Server, Settings, create_server

Serve = Callable[..., "Running"]


@dataclass(frozen=True)
class Running:
    """A server that runs, and a channel to it."""

    address: str
    server: Server
    loop: asyncio.AbstractEventLoop
    channel: grpc.Channel

    def drain(self, seconds: float) -> bool:
        """Drains the server from another thread."""
        return asyncio.run_coroutine_threadsafe(self.server.drain(seconds), self.loop).result(30)


@contextmanager
def running(settings: Settings, *, wait: bool = True) -> Iterator[Running]:
    """Runs a server until the end of the block.

    Args:
        settings: How it runs.
        wait: Return when every model is loaded, not when it listens.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server")
    thread.start()

    async def start() -> tuple[Server, int]:
        server, port = await create_server(settings)
        await server.start()
        if wait:
            await server.loaded()
        return server, port

    try:
        server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
        address = f"127.0.0.1:{port}"
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(address, options=options) as channel:
            yield Running(address, server, loop, channel)
        asyncio.run_coroutine_threadsafe(server.drain(1), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def serve(repository: Path) -> Iterator[Serve]:
    """Starts servers of the test repository; keyword arguments replace settings. All end with the test."""
    with ExitStack() as stack:

        def start(*, wait: bool = True, **overrides: object) -> Running:
            settings = {"models": repository, "port": 0, "device": "cpu", "threads": 1} | overrides
            return stack.enter_context(running(Settings(**settings), wait=wait))  # type: ignore[arg-type]

        yield start


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Running]:
    """One server of the test repository for a whole module."""
    with running(Settings(models=repository, port=0, device="cpu", threads=1)) as one:
        yield one
