"""Clients of an HTTP server that are slow on purpose, in a process of their own.

They say nothing, send a head or a body a byte at a time, or leave their connection open after a reply; who is
disconnected connects again. The process prints a line when all have connected, and ends with its input.
"""

import asyncio
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_POST = b"POST /v2/models/x/infer HTTP/1.1\r\nHost: a\r\n"
_KINDS = (
    (b"", b""),
    (_POST, b"X: 1\r\n" * 100),
    (_POST + b"Content-Length: 1000\r\n\r\n", b"{" * 1000),
    (b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", b""),
)
"""What each kind says at once, and what it says a byte at a time."""

_BYTE_SECONDS = 0.5
_AGAIN_SECONDS = 0.5


@contextmanager
def slow_clients(port: int, count: int) -> Iterator[None]:
    """Run such clients of a port of this machine until the end of the block."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(port), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError("the slow clients did not start")
        yield
    finally:
        process.terminate()
        process.communicate()


async def _connect(port: int, number: int) -> None:
    at_once, then = _KINDS[number % len(_KINDS)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(at_once)
        reading = asyncio.ensure_future(reader.read())  # until the server closes
        for byte in then:
            await asyncio.wait([reading], timeout=_BYTE_SECONDS)
            if reading.done():
                break
            writer.write(bytes([byte]))
        await reading
    finally:
        writer.close()


async def _stay(port: int, number: int, connected: asyncio.Semaphore) -> None:
    first = True
    while True:
        with suppress(OSError):
            attempt = asyncio.ensure_future(_connect(port, number))
            if first:
                await asyncio.sleep(0)
                connected.release()
                first = False
            await attempt
        await asyncio.sleep(_AGAIN_SECONDS)


async def _run(port: int, count: int) -> None:
    connected = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as clients:
        for number in range(count):
            clients.create_task(_stay(port, number, connected))
        for _ in range(count):
            await connected.acquire()
        await asyncio.sleep(1.0)
        print("connected", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        sys.exit()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_run(*map(int, sys.argv[1:])))
