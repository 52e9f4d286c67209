"""The memory that reading a body takes."""

import asyncio
import gc
import tracemalloc
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from tests.server.http.conftest import StartHttp

from polyhead_server import Settings
from polyhead_server.http.bodies import Bodies
from polyhead_server.observability.statistics import Statistics
from polyhead_server.serving.budget import Budget

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
            budget = Budget(4 * SIZE, Statistics())
            tracemalloc.start()
            body = await bodies.read(request, budget.begin(Statistics()))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert bytes(body).count(0) == len(body) == SIZE
        return peak / budget.bytes

    assert asyncio.run(read()) < 1.5


def bodies_left() -> int:
    """How many bodies, or other mapped files, are still referred to."""
    return sum(type(one) is mmap for one in gc.get_objects())  # `isinstance` asks the objects


def test_rejected_bodies_are_freed_without_the_garbage_collector(serve_over_http: StartHttp) -> None:
    web = serve_over_http(max_request_bytes=2 * SIZE)
    gc.collect()
    before = bodies_left()
    gc.disable()
    try:
        for _ in range(4):
            assert web.post("/embed", b"[" + b" " * SIZE).status == 413
        assert bodies_left() <= before + 1  # the last may just be on its way
    finally:
        gc.enable()
