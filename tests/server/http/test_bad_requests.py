"""Requests that are wrong: each is answered once, by name, and the next one works."""

import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.http.conftest import OverHttp, StartHttp, read_all
from tests.waiting import until

from polyhead_server.http.bodies import MAX_JSON_BYTES, MAX_VALUES, PIECE

INFER = "/v2/models/tiny/infer"
X = {"name": "x", "datatype": "FP32", "shape": [1, 2, 16], "data": [0.5] * 32}
GOOD = {"inputs": [X]}
RAW = np.ones((1, 2, 16), np.float32).tobytes()


def changed(**fields: Any) -> dict[str, Any]:
    """A request with one thing about its input changed; None leaves it out."""
    tensor = {name: value for name, value in {**X, **fields}.items() if value is not None}
    return {"inputs": [tensor]}


@pytest.fixture(autouse=True)
def _still_answers(web: OverHttp) -> Any:
    yield
    assert web.post(INFER, GOOD).status == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"\xef\xbb\xbf{}", "the request must have the field inputs"),
        (b'{"inputs": 1, "inputs": 2}', "inputs must be an array, was 2"),  # the last counts
        (b'{"inputs": NaN}', "NaN"),
        (b"[" * 50_000, "nested"),
        (b"1" * 5000, "infinity"),
        ({"inputs": [], "what": 1}, "'what' of the request is not known"),
        ({"inputs": [1]}, "inputs[0]"),
        ({"inputs": [X], "id": "\ud800"}, "UTF-8"),
        ({"inputs": [X], "id": "i" * 1025}, "1024"),
        ({"inputs": [X], "model_name": "other"}, "that of the path"),
        (
            {"inputs": [X], "parameters": {"a": [1]}},
            "parameters.a must be a boolean or a string or a whole number or a number, was an array",
        ),
        ({"inputs": [X], "parameters": {"priority": 2**63}}, f"must be less than {2**63}"),
        ({"inputs": [X], "parameters": {"binary_data_output": 1}}, "boolean"),
        ({"inputs": [X], "parameters": {"parts": True}}, "parts"),
        ({"inputs": [X], "outputs": [{"name": "none"}]}, "none"),
        ({"inputs": [X, X]}, "given once"),
        ({"inputs": [X] * 5000}, "inputs must have at most 4096 items"),
        (
            {"inputs": [X], "parameters": {str(key): 1 for key in range(5000)}},
            "parameters must have at most 64 items, had 5000",
        ),
        (changed(name="y"), "'y'"),
        (changed(datatype="FP99"), "FP99"),
        (changed(datatype="INT32", data=[1] * 32), "FP32"),
        (changed(shape=[1, 2, -16]), "inputs[0].shape[2] must be greater than or equal to 0, was -16"),
        (changed(shape=[1, 2, 16.5]), "inputs[0].shape[2] must be a whole number, was 16.5"),
        (changed(shape=[2**40] * 100_000), "inputs[0].shape must have at most 8 items, had 100000"),
        (changed(data=None), "data"),
        (changed(data=[0.5] * 31 + ["a"]), "element 31 was 'a'"),
        (changed(data=[0.5] * 31 + [1e39]), "FP32 can hold"),
        (changed(data=[0.5] * 31 + [10**400]), "infinity"),
        (json.dumps(GOOD).replace("0.5]", "1e999]").encode(), "infinity"),
        (changed(data=[[0.5] * 16, [0.5] * 15]), "evenly"),
        (changed(data=[[0.5] * 16] * 2), "flat or have shape"),
        (changed(parameters={"binary_data_size": 4}), "both"),
        (
            changed(parameters={"binary_data_size": -4}),
            "binary_data_size must be greater than or equal to 0, was -4",
        ),
        (changed(parameters={"nonsense": 4}), "nonsense"),
        (
            changed(data=None, parameters={"shared_memory_region": "a", "shared_memory_byte_size": 4}),
            "shared memory is not offered, send the tensor in the request",
        ),
    ],
)
def test_a_wrong_body_is_named(web: OverHttp, body: Any, named: str) -> None:
    answered = web.post(INFER, body)

    assert answered.status == 400
    assert named in answered.error


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b" " * (MAX_JSON_BYTES + 1), "in binary"),
        (b"[" + b"1," * MAX_VALUES + b"1]", "at most 1048576 values"),
        (b"[" + b"[]," * 300_000 + b"[]]", "an array or object as 8), had 2700016"),
        (b'{"input": [' + b"{}," * 300_000 + b"{}]}", "an array or object as 8)"),
        (b"{" + b'"":"",' * 300_000 + b'"":""}', "a key counts as 4, an array or object as 8), had 1500012"),
    ],
)
def test_too_much_json_is_refused(web: OverHttp, body: bytes, named: str) -> None:
    answered = web.post(INFER, body)

    assert answered.status == 413
    assert named in answered.error


def test_what_is_in_strings_is_no_value(web: OverHttp) -> None:
    code = r"\"[{,:\\" * (3 * 2**16)
    long = '[{"' + code + '": "' + code + '"}]'

    answered = web.post(INFER, long.encode())
    assert answered.status == 400
    answered = web.post(INFER, long.encode() + b"," * MAX_VALUES)
    assert (answered.status, f"had {MAX_VALUES + 20}: " in answered.error) == (413, True)


def test_fewer_texts_are_asked_for_first(web: OverHttp) -> None:
    answered = web.post("/v1/embeddings", b"[" + b"1," * MAX_VALUES + b"1]")

    assert answered.status == 413
    assert ": send fewer texts in a request" in answered.error


def with_binary(size: int | str, *, raw: bytes = RAW, count: int = len(RAW)) -> tuple[bytes, dict[str, str]]:
    """A request with a binary tensor, and a header that may lie."""
    text = json.dumps(changed(data=None, parameters={"binary_data_size": count})).encode()
    length = len(text) + size if isinstance(size, int) else size
    return text + raw, {"Inference-Header-Content-Length": str(length)}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        with_binary(1),
        with_binary(10**6),
        with_binary("-1"),
        with_binary("many"),
        with_binary("9" * 5000),
        with_binary("\xb2"),
        with_binary(0, raw=RAW[:-1]),
        with_binary(0, raw=RAW + b"\0"),
        with_binary(0, count=4),
    ],
)
def test_binary_tensors_must_be_where_the_header_says(
    web: OverHttp, body: bytes, headers: dict[str, str]
) -> None:
    assert web.post(INFER, body, headers).status == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/octet-stream"}, 200),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Encoding": "br"}, 415),
        ({"Content-Encoding": "gzip"}, 400),
        ({"x-request-timeout": "soon"}, 400),
        ({"x-request-timeout": "nan"}, 400),
        ({"x-request-timeout": "0"}, 504),
        ({"x-request-timeout": "30"}, 200),
        ({"Origin": "https://example.org"}, 403),
    ],
)
def test_headers_are_checked(web: OverHttp, headers: dict[str, str], status: int) -> None:
    assert web.post(INFER, GOOD, headers).status == status


@pytest.mark.parametrize(
    ("name", "first", "second", "status"),
    [(b"x-request-timeout", b"30", b"0", 400), (b"Content-Encoding", b"identity", b"br", 415)],
)
def test_a_header_that_comes_twice_is_refused(
    web: OverHttp, name: bytes, first: bytes, second: bytes, status: int
) -> None:
    twice = b"%b: %b\r\nConnection: close\r\n%b: %b\r\n" % (name, first, name, second)

    reply = web.say(HEAD + twice + LENGTH + b"\r\n" + BODY)

    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert b"was '%b, %b'" % (first, second) in reply


def test_an_unknown_encoding_is_refused_before_the_body_comes(web: OverHttp) -> None:
    with web.connect(HEAD + b"Content-Encoding: br\r\nContent-Length: 1000\r\n\r\n") as connection:
        assert connection.recv(64).startswith(b"HTTP/1.1 415 ")


def test_a_body_needs_no_type(web: OverHttp) -> None:
    assert web.ask("POST", INFER, GOOD).status == 200


@pytest.mark.parametrize("priority", ["0", "6", "high", ""])
def test_priorities_are_checked(web: OverHttp, priority: str) -> None:
    assert web.post(INFER, GOOD, {"x-request-priority": "1"}).status == 200
    assert web.post(INFER, GOOD, {"x-request-priority": priority}).status == 400


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (gzip.compress(json.dumps(GOOD).encode(), mtime=0)[:-9], "end is missing"),
        (gzip.compress(json.dumps(GOOD).encode(), mtime=0) + b"more", "more follows"),
        (gzip.compress(json.dumps(GOOD).encode(), mtime=0).ljust(PIECE) + b"more", "more follows"),
        (gzip.compress(RAW * 4096, 0, mtime=0)[:-9], "end is missing"),
        (b"", "end is missing"),
        (b"\x1f\x8b" + b"\0" * 40, "must be encoded as gzip"),
    ],
)
def test_compressed_bodies_must_be_whole(web: OverHttp, body: bytes, named: str) -> None:
    answered = web.post(INFER, body, {"Content-Encoding": "gzip"})

    assert answered.status == 400
    assert named in answered.error


def test_a_bomb_is_stopped_at_the_limit(serve_over_http: StartHttp) -> None:
    web = serve_over_http(max_request_bytes=2**20)
    deflater = zlib.compressobj(9, wbits=31)
    bomb = b"".join([*(deflater.compress(bytes(2**20)) for _ in range(64)), deflater.flush()])
    assert len(bomb) < 2**17

    answered = web.post(INFER, bomb, {"Content-Encoding": "gzip"})

    assert answered.status == 413
    assert "1048576 bytes" in answered.error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 405),
        ("GET", "/v2/models/%2e%2e%2fsecret", 404),
        ("GET", "/v2/models/%00", 404),
        ("GET", "/v2/models/" + "n" * 5000, 404),
        ("GET", "/v2/models/tiny/versions/../config", 400),
        ("GET", INFER, 405),
        ("PUT", INFER, 405),
        ("OPTIONS", INFER, 405),
        ("POST", "/v2/repository/models/tiny/load", 404),
        ("POST", "/v2/systemsharedmemory/region/mine/register", 501),
        ("GET", "/v2/cudasharedmemory/status", 501),
    ],
)
def test_paths_and_methods_that_there_are_not(web: OverHttp, method: str, path: str, status: int) -> None:
    answered = web.ask(method, path)

    assert answered.status == status
    assert len(answered.error) < 300


@pytest.mark.parametrize("path", ["/v2/", "//v2//", "/v2/models//tiny/", "/healthz/"])
def test_slashes_too_many_change_nothing(web: OverHttp, path: str) -> None:
    assert web.get(path).body == web.get(path.replace("//", "/").rstrip("/")).body
    assert web.get(path).status == 200


def test_shared_memory_is_refused_in_words(web: OverHttp) -> None:
    answered = web.post("/v2/systemsharedmemory/region/mine/register", {"key": "/mine", "byte_size": 8})

    assert answered.error == "shared memory is not offered: send the tensors in the request"


def test_head_is_get_without_a_body(web: OverHttp) -> None:
    answered = web.ask("HEAD", "/v2")

    assert (answered.status, answered.body) == (200, b"")


def test_what_is_rejected_here_is_counted(web: OverHttp) -> None:
    def counts() -> tuple[float, float]:
        codes = web.codes()
        return sum(codes.values()), codes.get("INVALID_ARGUMENT", 0)

    failed, invalid = counts()
    web.post(INFER, b"{")
    web.post(INFER, GOOD, {"Content-Type": "text/plain"})
    web.post("/v1/embeddings", {})
    web.post(INFER, GOOD, {"x-request-timeout": "soon"})
    web.post(INFER, GOOD)  # its answer comes after they have been counted

    assert counts() == (failed + 4, invalid + 4)


# ---- What is not HTTP, or not all of it --------------------------------------------------------


HEAD = b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps(GOOD).encode()
NEXT = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n\r\n",  # no Host
        b"GET /v2\r\n\r\n",
        b"GET /v2 HTTP/0.9\r\nHost: localhost\r\n\r\n",
        b"GET /v2 HTTP/3.0\r\nHost: localhost\r\n\r\n",
        b"GET /v2 HTTP/1.1\nHost: localhost\n\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: \0\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 300_000 + b"\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n" + b"X: 1\r\n" * 50_000 + b"\r\n",
        b"GET /" + b"x" * 20_000,
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        # Smuggling: whoever is in front may see the end of these elsewhere.
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + NEXT,
        HEAD.replace(b"tiny", b"none")
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        + NEXT,
        HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
        HEAD + b"Content-Length: 5, 6\r\n\r\nhello" + NEXT,
        HEAD + b"Content-Length: +5\r\n\r\nhello" + NEXT,
        HEAD + b"Content-Length: 0x5\r\n\r\nhello" + NEXT,
        HEAD + b"Content-Length: 5\r\n6\r\n\r\nhello" + NEXT,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + NEXT,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n" + NEXT,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n" + NEXT,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"x" * 300_000 + b"\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: 1\r\n" * 50_000 + b"\r\n",
    ],
)
def test_what_is_not_http_ends_the_connection(web: OverHttp, said: bytes) -> None:
    reply = web.say(said)

    assert reply == b"" or reply.startswith(b"HTTP/1.1 400 "), reply
    assert reply.count(b"HTTP/1.1 ") <= 1


@pytest.mark.parametrize(
    "said",
    [
        HEAD,
        HEAD + LENGTH + b"\r\n" + BODY[:-1],
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    ],
)
def test_half_a_request_needs_no_answer(web: OverHttp, said: bytes) -> None:
    before = web.codes().get("CANCELLED", 0)

    assert web.say(said, end=True) == b""

    if said != HEAD:
        until(lambda: web.codes().get("CANCELLED", 0) != before)


def test_more_body_than_said_is_no_second_answer(web: OverHttp) -> None:
    reply = web.say(HEAD + LENGTH + b"\r\n" + BODY + b"more\r\n\r\n")

    assert reply.startswith(b"HTTP/1.1 200 OK")
    assert reply.count(b"HTTP/1.1 ") == 1


def test_pipelined_requests_are_answered_in_order(web: OverHttp) -> None:
    asked = b"".join(
        HEAD + b"x-request-id: id-%d\r\n" % number + LENGTH + b"\r\n" + BODY for number in range(20)
    )

    reply = web.say(asked + b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")

    assert reply.count(b"HTTP/1.1 200 OK") == 21
    places = [reply.index(b"x-request-id: id-%d\r\n" % number) for number in range(20)]
    assert places == sorted(places)


def test_few_requests_wait_for_their_replies(web: OverHttp) -> None:
    reply = web.say(NEXT * 100)

    assert 1 <= reply.count(b"HTTP/1.1 200 OK") <= 40
    assert reply.count(b"HTTP/1.1 ") == reply.count(b"HTTP/1.1 200 OK")


def test_a_request_for_http_2_is_answered_in_http_1(web: OverHttp) -> None:
    """As Java's client sends it, which goes on with HTTP/1.1 where the server does."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"

    reply = web.say(
        HEAD + upgrade + LENGTH + b"\r\n" + BODY + NEXT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    )

    assert reply.count(b"HTTP/1.1 200 OK") == 2
    assert b'"model_name":"tiny"' in reply


def test_a_target_may_name_the_server(web: OverHttp) -> None:
    """As proxies send it; what it names counts, whatever Host says."""
    for host, status in ((b"localhost:8002", 200), (b"example.org", 403)):
        target = b"GET http://%b/v2?x=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % host
        assert web.say(target).startswith(b"HTTP/1.1 %d " % status)
    query = b"GET /v2?x=://localhost/ HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n"
    assert web.say(query).startswith(b"HTTP/1.1 403 ")


def test_http_1_0(web: OverHttp) -> None:
    reply = web.say(b"POST /v2/models/tiny/infer HTTP/1.0\r\n" + LENGTH + b"\r\n" + BODY)

    assert reply.startswith(b"HTTP/1.1 200 OK")
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"onnection: close" in head
    assert json.loads(body)["model_name"] == "tiny"


def test_a_body_in_chunks_of_a_byte(web: OverHttp) -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"

    reply = web.say(HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks)

    assert reply.startswith(b"HTTP/1.1 200 OK")


def test_a_body_without_end_is_stopped_at_the_limit(serve_over_http: StartHttp) -> None:
    web = serve_over_http(max_request_bytes=2**20)
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    with web.connect(HEAD + b"Transfer-Encoding: chunked\r\n\r\n") as connection:
        for _ in range(16):
            connection.sendall(chunk)
        connection.sendall(b"1\r\n0\r\n")
        reply = connection.recv(2**16)
    assert reply.startswith(b"HTTP/1.1 413 ")


def test_a_body_that_is_announced_too_large_is_not_read(web: OverHttp) -> None:
    asked = HEAD + b"Content-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n"
    with web.connect(asked) as connection:
        assert connection.recv(2**16).startswith(b"HTTP/1.1 413 ")


def test_a_client_is_asked_to_go_on(web: OverHttp) -> None:
    with web.connect(HEAD + LENGTH + b"Connection: close\r\nExpect: 100-continue\r\n\r\n") as connection:
        assert connection.recv(2**16).startswith(b"HTTP/1.1 100 ")
        connection.sendall(BODY)
        assert read_all(connection).startswith(b"HTTP/1.1 200 OK")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.sampled_from([*X, "parameters", "other"]), JSON, max_size=5)


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(FIELDS, st.dictionaries(st.sampled_from(["id", "parameters", "outputs", "inputs"]), JSON, max_size=2))
def test_any_json_is_answered(web: OverHttp, fields: dict[str, Any], others: dict[str, Any]) -> None:
    body = json.dumps({"inputs": [{**X, **fields}], **others}).encode()

    assert web.post(INFER, body).status in {200, 400, 413}
