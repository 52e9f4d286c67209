"""The memory that reading a body takes."""

import asyncio
import tracemalloc
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from polyhead_server import Settings
from polyhead_server.http.bodies import Bodies

SIZE = 8 * 2**20
PART = 64 * 2**10


def plain() -> Iterator[bytes]:
    for _ in range(SIZE // PART):
        yield bytes(PART)


def compressed(level: int) -> Iterator[bytes]:
    deflater = zlib.compressobj(level)
    for part in plain():
        yield deflater.compress(part)
    yield deflater.flush()


@pytest.mark.parametrize(
    ("parts", "encoding"),
    [(plain, "identity"), (partial(compressed, 1), "deflate"), (partial(compressed, 0), "deflate")],
    ids=["plain", "compressed", "as large as what it holds"],
)
def test_a_body_takes_the_memory_that_is_counted(parts: Any, encoding: str) -> None:
    coming = parts()

    async def receive() -> dict[str, Any]:
        part = next(coming, None)
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    async def read() -> float:
        headers = [(b"content-encoding", encoding.encode())]
        request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
        with ThreadPoolExecutor(1) as workers:
            bodies = Bodies(Settings(models=Path("models")), workers)
            tracemalloc.start()
            async with bodies.read(request) as body:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert body.count(0) == len(body) == SIZE
                held = bodies.held
        assert bodies.held == 0
        return peak / held

    assert asyncio.run(read()) < 1.5
