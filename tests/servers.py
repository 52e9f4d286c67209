"""Real servers for tests: in a thread of this process, or as a process; and callers that keep them busy."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from tests.clock import SkippingLoop

from polyhead_server import GrpcServer, Settings
from polyhead_server.http.listener import HttpServer
from polyhead_server.remote import RemoteFolder

COMMAND = (sys.executable, "-c", "from polyhead_server.command import app; app()")


@dataclass(frozen=True)
class InThread:
    """A server in a thread of this process."""

    server: GrpcServer
    loop: SkippingLoop
    address: str

    def drain(self, seconds: float) -> bool:
        """Drains the server."""
        return asyncio.run_coroutine_threadsafe(self.server.drain(seconds), self.loop).result(240)


def quick_settings(models: Path | RemoteFolder, **overrides: Any) -> Settings:
    """Settings of a server on a free port, alike on every machine, however busy."""
    quick: dict[str, Any] = {"port": 0, "device": "cpu", "threads": 1, "max_wait_seconds": 600.0}
    return Settings(models=models, **(quick | overrides))


@contextmanager
def serving(settings: Settings, *, wait: bool = True) -> Iterator[InThread]:
    """Runs a server until the end of the block.

    Args:
        settings: How it runs.
        wait: Begin the block when every model is loaded, not when it listens.
    """
    loop = SkippingLoop()
    thread = threading.Thread(target=loop.run_forever, name="server")
    thread.start()

    async def start() -> GrpcServer:
        server = GrpcServer(settings)
        try:
            await server.start()
            if wait:
                await server.loaded()
        except BaseException:
            await server.drain(0)
            raise
        return server

    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(240)
        one = InThread(server, loop, f"127.0.0.1:{server.port}")
        try:
            yield one
        finally:
            one.drain(0)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def serving_many(settings: Settings) -> Iterator[str]:
    """Runs a server for many tests, whose metrics do not show beside those of others; yields its address."""
    with serving(settings) as one:
        one.server.runtime.registry.metrics.close()
        yield one.address


@contextmanager
def serving_http(loop: asyncio.AbstractEventLoop, *arguments: Any) -> Iterator[int | None]:
    """Serves over HTTP on an event loop that runs in another thread; yields the port. See `HttpServer`."""

    async def start() -> HttpServer:
        server = HttpServer(*arguments)
        server.start()
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(120)
    try:
        yield server.port
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(1), loop).result(240)


@contextmanager
def serving_metrics(settings: Settings) -> Iterator[int | None]:
    """Serves metrics and probes over HTTP, on an event loop of their own; yields the port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="metrics")
    thread.start()
    try:
        with serving_http(loop, settings) as port:
            yield port
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class ServerProcess:
    """A server as a process of its own, its log read as it comes."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._more:
                self.lines.append(line)
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return "".join(self.lines)

    def until(self, pattern: str, times: int = 1, seconds: float = 240) -> re.Match[str]:
        """Waits until so many lines of the log match; the last match."""

        def matches() -> list[re.Match[str]]:
            return [match for line in self.lines if (match := re.search(pattern, line))]

        with self._more:
            self._more.wait_for(lambda: len(matches()) >= times or self._ended, seconds)
            assert len(matches()) >= times, f"the log has no {pattern}:\n{self.log}"
        return matches()[times - 1]

    def end(self) -> int:
        """Waits for the exit code, and for the end of the log."""
        code = self.process.wait(240)
        self._reader.join(240)
        return code

    def close(self) -> None:
        """Ends it, however it stands."""
        self.process.kill()
        self.process.wait()
        self._reader.join(240)
        assert self.process.stderr is not None
        self.process.stderr.close()


class Callers:
    """Threads with a connection each, which call without a pause until a call fails.

    Args:
        address: Where.
        call: Calls once on a channel.
        count: How many there are.
        options: Of their channels.
    """

    def __init__(
        self, address: str, call: Callable[[grpc.Channel], object], *, count: int, options: Any = ()
    ) -> None:
        self.errors: list[Any] = []
        """What each has ended with."""
        self._answered = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._run, args=(address, call, options)) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def codes(self) -> list[grpc.StatusCode]:
        """Their status."""
        return [error.code() for error in self.errors]

    def _run(self, address: str, call: Callable[[grpc.Channel], object], options: Any) -> None:
        with grpc.insecure_channel(address, options=options) as channel:
            while True:
                try:
                    call(channel)
                except grpc.RpcError as error:
                    self.errors.append(error)
                    return
                self._answered.release()

    def wait_for_answers(self, count: int) -> None:
        """Returns after so many more answers."""
        for _ in range(count):
            assert self._answered.acquire(timeout=240)

    def wait_until_ended(self) -> None:
        """Returns when every one of them has failed."""
        for thread in self._threads:
            thread.join(240)
            assert not thread.is_alive()
