"""The memory that reading a body takes."""

import asyncio
import gc
import json
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.server.http.conftest import StartHttp

from polyhead_server import Settings
from polyhead_server.http.bodies import read_body, read_json
from polyhead_server.observability.statistics import Statistics
from polyhead_server.serving.budget import Budget

SIZE = 8 * 2**20
PART = 64 * 2**10
LONG = 123_457


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

    async def run(_: int, function: Any, *arguments: object) -> Any:
        return function(*arguments)

    async def read() -> float:
        budget = Budget(4 * SIZE, Statistics())
        tracemalloc.start()
        headers, settings = {"content-encoding": encoding}, Settings(models=Path("models"))
        body = await read_body(receive, headers, settings, budget.begin(), run)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert bytes(body).count(0) == len(body) == SIZE
        return peak / budget.bytes

    assert asyncio.run(read()) < 1.5


@pytest.mark.parametrize("escaped", [False, True])
def test_a_string_counts_with_the_memory_that_it_takes(escaped: bool) -> None:
    def more(string: str) -> int:
        """What reading it adds to the bytes of its text."""
        text = bytearray(json.dumps([string], ensure_ascii=escaped).encode())
        document, size = read_json(text)
        assert sys.getsizeof(document[0]) < len(text) + size + 100
        return size

    assert more("a" * LONG) < 1000
    assert more("a" * LONG + "\U0001f600") > 3 * LONG


@pytest.mark.parametrize(
    "body",
    [b"[" + b" " * SIZE, b'{"inputs": [' + b"0," * (LONG - 1) + b'0], "unknown": 1}'],
    ids=["no JSON", "JSON that is refused"],
)
def test_rejected_bodies_are_freed_without_the_garbage_collector(
    serve_over_http: StartHttp, body: bytes
) -> None:
    web = serve_over_http(max_request_bytes=2 * SIZE)
    assert web.post("/embed", body).status == 400
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(8):
            assert web.post("/embed", body).status == 400
        # Those of the last may just be on their way.
        assert tracemalloc.get_traced_memory()[0] < 3 * (len(body) + 2**20)
    finally:
        tracemalloc.stop()
        gc.enable()
