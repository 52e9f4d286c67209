"""The page over HTTP: what browsers, other sites and broken scripts may ask."""

import asyncio
import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.view.explorer.fake import FakeClient

from polyhead_client import (
    AccessDenied,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    PolyheadError,
    ServerError,
    TooLarge,
    Unavailable,
)
from polyhead_view.explorer.app import MAX_QUESTION_BYTES, create_page
from polyhead_view.explorer.explorer import Explorer
from polyhead_view.explorer.saved import STATIC

ASKED = {"model": "words", "text": "the cat sat"}
PATHS = ("overview", "map", "change", "similarity", "npz", "page")


def test_nothing_is_fetched_from_elsewhere_and_no_text_becomes_markup(page: TestClient) -> None:
    names = {path.name for path in STATIC.iterdir()} - {"icon.svg"}
    assert len(names) == 11
    for name in names:
        text = page.get(f"/{name}").text.replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert not re.search(r"<script>|\son\w+=|\sstyle=", text), "the policy would block it"


def luminance(colour: str) -> float:
    """The relative luminance of #rgb or #rrggbb, as WCAG defines it."""
    digits = colour if len(colour) == 6 else "".join(2 * digit for digit in colour)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_can_be_read_on_a_light_page_and_on_a_dark_one(page: TestClient) -> None:
    roots = re.findall(r":root \{(.*?)\}", page.get("/explorer.css").text, re.S)
    light, dark = (dict(re.findall(r"--(\w+): #([0-9a-f]+)", root)) for root in roots)

    assert light.keys() == dark.keys()
    for colours in (light, dark):
        ground = luminance(colours["page"])
        for name in ("text", "quiet", "focus"):
            darker, lighter = sorted((luminance(colours[name]), ground))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, name
            assert (ground == darker) is (colours is dark)


@pytest.mark.parametrize("path", ["/", "/explorer.js", "/api/server", "/missing", "/api/overview"])
def test_every_answer_has_the_headers_that_lock_the_page(page: TestClient, path: str) -> None:
    headers = page.get(path).headers

    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8003", "localhost.", "", "[::2]:8003"]
)
def test_other_host_names_are_refused(page: TestClient, host: str) -> None:
    """A name that an attacker points to this machine (DNS rebinding) comes with its own Host."""
    assert page.get("/", headers={"host": host}).status_code == 400
    assert page.post("/api/overview", json=ASKED, headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1:8003", "localhost:1", "LOCALHOST", "[::1]:8003"])
def test_names_of_loopback_are_answered(page: TestClient, host: str) -> None:
    assert page.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
def test_other_sites_cannot_ask(page: TestClient, words: FakeClient, content_type: str | None) -> None:
    """Without a preflight, browsers send no other content types for them; the preflight is refused."""
    headers = {} if content_type is None else {"content-type": content_type}

    answer = page.post("/api/overview", content=json.dumps(ASKED), headers=headers)

    assert answer.status_code == 400
    assert not words.calls
    assert page.options("/api/overview", headers={"origin": "http://evil.example"}).status_code == 405


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "must be JSON"),
        (b"{", "must be JSON"),
        (b"\xff", "must be JSON"),
        (b"[" * 100_000, "must be JSON"),
        (b"[]", "an object of model, text"),
        (b'{"model": "words", "text": "a", "colour": 1}', "an object of model, text"),
        (b'{"model": "words"}', "have a text"),
        (b'{"text": "a"}', "name a model"),
        (b'{"model": "words", "text": ["a"]}', "text must be of type str, was list"),
        (b'{"model": "words", "text": "a", "layer": "0"}', "layer must be of type int, was str"),
        (b'{"model": "words", "text": "a", "head": true}', "head must be of type int, was bool"),
        (b'{"model": "words", "text": "a", "truncate": 1}', "truncate must be of type bool, was int"),
        (b'{"model": "words", "text": "a", "layer": -1}', "layer must be at least 0, was -1"),
        (b'{"model": "words", "text": "a", "silenced": [[0]]}', "silenced must be a list of"),
        (b'{"model": "words", "text": "a", "silenced": [[0, 3]]}', "within 2 layers of 3 heads, was [0, 3]"),
    ],
)
def test_bad_questions_are_refused_with_a_sentence(page: TestClient, body: bytes, said: str) -> None:
    for path in PATHS:
        answer = page.post(f"/api/{path}", content=body, headers={"content-type": "application/json"})

        assert answer.status_code == 400
        assert answer.json()["kind"] == "InvalidRequest"
        assert said in answer.json()["message"]


def test_a_long_question_is_refused_before_it_is_read_to_its_end(page: TestClient) -> None:
    answer = page.post("/api/overview", json={**ASKED, "text": "a" * MAX_QUESTION_BYTES})

    assert answer.status_code == 413
    assert str(MAX_QUESTION_BYTES) in answer.json()["message"]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (InvalidRequest, 400),
        (AccessDenied, 403),
        (NotFound, 404),
        (TooLarge, 413),
        (ServerError, 502),
        (Unavailable, 503),
        (DeadlineExceeded, 504),
    ],
)
def test_errors_of_the_server_reach_the_page(
    page: TestClient, words: FakeClient, kind: type[PolyheadError], status: int
) -> None:
    words.error = kind("so it is <b>")

    for answer in (page.get("/api/server"), page.post("/api/overview", json=ASKED)):
        assert answer.status_code == status
        assert answer.json() == {"kind": kind.__name__, "message": "so it is <b>"}
    words.error = None
    assert page.post("/api/overview", json=ASKED).status_code == 200


@pytest.mark.parametrize("path", ["server", *PATHS])
def test_what_the_browser_no_longer_waits_for_is_cancelled(words: FakeClient, path: str) -> None:
    words.held = True
    page = create_page(Explorer(words.as_client, address="host:1"))
    sent: list[Any] = []

    async def ask_and_leave() -> None:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        body = b"" if path == "server" else json.dumps({**ASKED, "other": "a dog"}).encode()
        await messages.put({"type": "http.request", "body": body, "more_body": False})
        scope = {
            "type": "http",
            "method": "GET" if path == "server" else "POST",
            "path": f"/api/{path}",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }

        async def send(message: Any) -> None:
            sent.append(message)

        running = asyncio.ensure_future(page(scope, messages.get, send))
        await words.reached.wait()
        await messages.put({"type": "http.disconnect"})
        await running

    asyncio.run(asyncio.wait_for(ask_and_leave(), 120))

    assert words.waiting == 0
    assert sent[0]["status"] == 499
