"""Requests that are damaged byte by byte and line by line: each is answered, or its connection is closed.

`POLYHEAD_TEST_FUZZ=20000` sends so many, instead of a few hundred.
"""

import gzip
import http.client
import io
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.mutations import mutations
from tests.server.http.conftest import OverHttp, over_http

COUNT = int(os.environ.get("POLYHEAD_TEST_FUZZ", "400"))
AT_ONCE = 200
"""A request that lacks its end takes as long as the server waits for it."""

GROWTH = 96 * 2**20

RAW = np.ones((1, 2, 16), np.float32).tobytes()
X = {"name": "x", "datatype": "FP32", "shape": [1, 2, 16]}
TEXT = json.dumps({"inputs": [{**X, "data": [0.5] * 32}], "outputs": [{"name": "output"}]}).encode()
BINARY = json.dumps(
    {
        "inputs": [{**X, "parameters": {"binary_data_size": len(RAW)}}],
        "parameters": {"binary_data_output": True},
    }
).encode()
CALL = json.dumps({"model": "tiny-tokens", "input": ["a cat", "a dog"], "encoding_format": "base64"}).encode()


def request(path: str, body: bytes = b"", *headers: str, version: str = "1.1") -> bytes:
    """A request that is right."""
    lines = [f"{'POST' if body else 'GET'} {path} HTTP/{version}", "Host: localhost", *headers]
    if body and "Transfer-Encoding: chunked" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunks(body: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:])) + b"0\r\n\r\n"


SEEDS = (
    request("/v2/models/tiny/infer", TEXT, "Content-Type: application/json", "x-request-timeout: 20"),
    request("/v2/models/tiny/infer", BINARY + RAW, f"Inference-Header-Content-Length: {len(BINARY)}"),
    request("/v2/models/tiny/versions/1/infer", chunks(TEXT), "Transfer-Encoding: chunked"),
    request(
        "/v2/models/tiny/infer",
        gzip.compress(TEXT, mtime=0),
        "Content-Encoding: gzip",
        "Accept-Encoding: gzip",
    ),
    request(
        "/v1/embeddings", CALL, "Authorization: Bearer abc", "x-request-priority: 2", "Expect: 100-continue"
    ),
    request("/embed", b'{"inputs": "a cat", "truncate": true}', version="1.0"),
    request("/v2/models/tiny") + request("/v2/models/tiny/infer", TEXT) + request("/metrics"),
    request("/v2/models/tiny/config", b"", "Connection: Upgrade", "Upgrade: websocket"),
    request("/v2/repository/index", b'{"ready": true}', "Connection: close"),
)

LINES = (
    b"Content-Length: 0",
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Inference-Header-Content-Length: 9999999999",
    b"Content-Encoding: gzip",
    b"Content-Encoding: deflate",
    b"Expect: 100-continue",
    b"Origin: https://example.org",
    b"Connection: close",
    b"x-request-timeout: 0.001",
    b"x-request-id: \xff",
    b" folded",
    b"\0",
    b"x" * 20_000,
)
VALUES = (b"-1", b"0", b"9" * 30, b"1e999", b"NaN", b"null", b"[]", b'"', b"{}", b"\\ud800", b"..%2f%00")


def rewritten(said: bytes, chance: random.Random) -> bytes:
    """Another request, with one line, or one number, made into another."""
    lines = said.split(b"\r\n")
    at = chance.randrange(len(lines))
    match chance.randrange(6):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, chance.choice(lines))
        case 2:
            lines.insert(at, chance.choice(LINES))
        case 3:
            lines[at] = chance.choice(LINES)
        case 4 if numbers := list(re.finditer(rb"[0-9]+", said)):
            found = chance.choice(numbers)
            return said[: found.start()] + chance.choice(VALUES) + said[found.end() :]
        case _:
            place = chance.randrange(len(said) + 1)
            return said[:place] + chance.choice(VALUES) + said[place:]
    return b"\r\n".join(lines)


def damaged() -> Iterator[bytes]:
    """Requests, each one wrong in its own way, without end."""
    chance = random.Random(19)
    streams = [mutations(seed, COUNT) for seed in SEEDS]
    while True:
        for seed, stream in zip(SEEDS, streams, strict=True):
            said = next(stream)
            yield said
            yield rewritten(seed, chance)
            yield rewritten(said, chance)


class OfBytes:
    """What `http.client` reads a reply from."""

    def __init__(self, received: bytes) -> None:
        self.file = io.BytesIO(received)

    def makefile(self, *_: object) -> io.BytesIO:
        """The bytes."""
        return self.file


def statuses(received: bytes) -> Iterator[int]:
    """The statuses of whole replies; fails where something is no reply."""
    while received:
        assert received.startswith(b"HTTP/1.1 "), received[:100]
        head, found, rest = received.partition(b"\r\n\r\n")
        assert found, received
        if head.startswith(b"HTTP/1.1 100 "):
            received = rest
            continue
        source = OfBytes(received)
        reply = http.client.HTTPResponse(source)  # type: ignore[arg-type]
        reply.begin()
        reply.read()  # raises if it is cut short
        yield reply.status
        received = received[source.file.tell() :] if not source.file.closed else b""


@pytest.fixture
def impatient(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OverHttp]:
    """A server that soon closes connections on which nothing happens."""
    monkeypatch.setattr("polyhead_server.http.guard.HEAD_SECONDS", 1.0)
    monkeypatch.setattr("polyhead_server.http.guard._KEEP_ALIVE_SECONDS", 0.1)
    with over_http(repository, max_request_seconds=3.0, max_request_bytes=2**20) as web:
        yield web


def test_each_damaged_request_is_answered_or_its_connection_is_closed(impatient: OverHttp) -> None:
    process = psutil.Process()
    seen: Counter[int] = Counter()
    before = None
    requests = damaged()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in range(COUNT // AT_ONCE):
            said = list(islice(requests, AT_ONCE))
            for sent, received in zip(said, pool.map(impatient.say, said), strict=True):
                found = list(statuses(received))
                assert len(found) <= sent.count(b"HTTP") + 1, sent
                assert all(status < 500 or status in {503, 504} for status in found), (sent, received)
                seen.update(found or [0])
            assert impatient.post("/v2/models/tiny/infer", TEXT).status == 200
            before = before or (process.memory_info().rss, process.num_fds())

    assert impatient.running.call("ServerReady").ready
    assert impatient.running.runtime.budget.bytes == 0
    assert {200, 400} < seen.keys()
    assert before is not None
    assert process.num_fds() <= before[1] + 10
    assert process.memory_info().rss < before[0] + GROWTH
