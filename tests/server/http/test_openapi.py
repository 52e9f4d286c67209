"""The OpenAPI document: valid, complete, and true of what is answered."""

import json
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from starlette.applications import Starlette
from starlette.routing import Route
from tests.server.http.conftest import Answered, OverHttp, StartHttp, over_http, read_all

from polyhead_server.http import application
from polyhead_server.http.application import create_application
from polyhead_server.http.openapi import document as document_of
from polyhead_server.http.threadsafe import ThreadsafeRuntime
from polyhead_server.scheduling import Scheduler

TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 1, 16], "data": [0.5] * 16}
BODIES: dict[str, dict[str, Any]] = {
    "/infer": {"inputs": [TENSOR], "outputs": [{"name": "output"}]},
    "/v2/repository/index": {"ready": True},
    "/v1/embeddings": {"model": "tiny-tokens", "input": "a dog"},
    "/embed": {"model": "tiny-tokens", "inputs": "a dog"},
    "/embed_sparse": {"model": "splade", "inputs": "a dog"},
    "/predict": {"model": "reranker", "inputs": "a dog"},
    "/v1/rerank": {"model": "reranker", "query": "a cat", "documents": ["a dog"]},
    "/v2/rerank": {"model": "reranker", "query": "a cat", "documents": ["a dog"], "return_evidence": True},
    "/rerank": {"model": "reranker", "query": "a cat", "texts": ["a dog"], "return_evidence": 2},
}
MOST_BYTES = 2048
TOKEN = secrets.token_hex(16)
BEARER = {"Authorization": f"Bearer {TOKEN}"}

Described = dict[str, Any]


def body_of(path: str) -> dict[str, Any] | None:
    """A request's body; None for paths that take none."""
    return next((body for end, body in BODIES.items() if path.endswith(end)), None)


def filled(path: str, name: str = "", version: str = "1") -> str:
    """A path with a model that it knows, or this one."""
    known = "tiny-tokens" if path.startswith("/v1") else "tiny"
    return path.replace("{name}", name or known).replace("{version}", version)


@pytest.fixture(scope="module")
def models(repository: Path, scorers: Path, splade: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Families for every path."""
    models = shutil.copytree(repository, tmp_path_factory.mktemp("openapi") / "models")
    shutil.copytree(scorers / "reranker", models / "reranker")
    shutil.copytree(splade / "models" / "splade", models / "splade")
    return models


@pytest.fixture(scope="module")
def web(models: Path) -> Iterator[OverHttp]:
    with over_http(models) as one:
        yield one


@pytest.fixture(scope="module")
def document(web: OverHttp) -> Any:
    return web.get("/openapi.json").json


def operations(document: Any) -> Iterator[tuple[str, str, Described]]:
    """Each path with its method."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def paths(application: Starlette) -> set[str]:
    return {route.path for route in application.routes if isinstance(route, Route)}


def check(answered: Answered, operation: Described) -> None:
    """Checks that a reply is what the document says of its status."""
    content = operation["responses"][str(answered.status)]["content"]
    media_type = answered.headers["content-type"].partition(";")[0]
    body = answered.json if media_type == "application/json" else answered.body.decode()
    OAS31Validator(content[media_type]["schema"]).validate(body)


def test_the_document_is_valid(document: Any) -> None:
    validate(document)


def test_it_is_made_once(serve_over_http: StartHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Mock(wraps=document_of)
    monkeypatch.setattr(application, "document", make)
    web = serve_over_http()

    first, again = web.get("/openapi.json"), web.get("/openapi.json")
    assert first.body == again.body
    assert first.json["openapi"]
    assert make.call_count == 1


def test_it_has_every_path_and_those_without_inference(web: OverHttp) -> None:
    runtime = web.running.runtime
    threadsafe = ThreadsafeRuntime(runtime, web.running.loop)
    with ThreadPoolExecutor(1) as workers:
        every = create_application(runtime.settings, workers, runtime=threadsafe)
        few = create_application(runtime.settings, workers)

    described = web.get("/openapi.json").json["paths"]
    assert set(described) == paths(every)
    assert paths(few) == {"/healthz", "/readyz", "/metrics", "/openapi.json"}


def test_every_path_answers_as_described(web: OverHttp, document: Any) -> None:
    for path, method, operation in operations(document):
        answered = web.ask(method, filled(path), body_of(path))
        assert answered.status == 200, (path, answered.body)
        check(answered, operation)
        if (body := body_of(path)) is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            validator = OAS31Validator(schema)
            validator.validate(body)
            assert not validator.is_valid({**body, "unknown": 1})
            assert web.post(filled(path), {**body, "unknown": 1}).status == 400


def test_headers_are_described_as_they_are_checked(web: OverHttp, document: Any) -> None:
    seen = set()
    for path, _, operation in operations(document):
        for header in operation["parameters"]:
            if header["in"] == "header" and "pattern" in header["schema"]:
                assert re.search(header["schema"]["pattern"], "nonsense") is None
                assert web.post(filled(path), body_of(path), {header["name"]: "nonsense"}).status == 400
                seen.add(header["name"])
    assert seen == {"x-request-timeout", "x-request-priority", "inference-header-content-length"}


def test_every_field_and_parameter_is_explained(document: Any) -> None:
    def explained(schema: Described) -> bool:
        properties = schema.get("properties", {}).values()
        return all(one["description"] and explained(one.get("items", {})) for one in properties)

    for path, _, operation in operations(document):
        assert all(parameter["description"] for parameter in operation["parameters"]), path
        if "requestBody" in operation:
            assert explained(operation["requestBody"]["content"]["application/json"]["schema"]), path


def test_every_example_can_be_sent(web: OverHttp, document: Any) -> None:
    sent = 0
    for path, _, operation in operations(document):
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]["application/json"]
            example = content["example"]
            OAS31Validator(content["schema"]).validate(example)
            if "model" in example:
                example["model"] = (body_of(path) or {})["model"]
            answered = web.post(path.format(name="tiny-tokens", version=1), example)
            assert answered.status == 200, answered.body
            sent += 1
    assert sent == len(BODIES) + 1


@pytest.fixture
def strict(serve_over_http: StartHttp, models: Path, tmp_path: Path) -> OverHttp:
    """A server that soon has enough."""
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    limits = {"max_request_bytes": MOST_BYTES, "max_held_bytes": MOST_BYTES, "max_request_seconds": 2.0}
    return serve_over_http(models, token_file=tokens, **limits)


def half(web: OverHttp, path: str, size: int) -> Any:
    """Sends so much of a body, and not the rest."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    end = f"Connection: close\r\nContent-Length: {size + 1}\r\n\r\n"
    return web.connect(f"{head}{end}".encode() + b" " * size)


def test_every_error_that_is_described_occurs(strict: OverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    described = {
        (path, method, int(status)): operation
        for path, method, operation in operations(strict.ask("GET", "/openapi.json", headers=BEARER).json)
        for status in operation["responses"]
        if status != "200"
    }
    seen: set[tuple[str, str, int]] = set()

    def occurs(status: int, body: object = None, headers: dict[str, str] = BEARER, **of: str) -> None:
        """Asks all paths that have an error for it."""
        for (path, method, code), operation in described.items():
            if code != status:
                continue
            given = body_of(path) if body is None else body
            if method == "GET":
                given = None
            elif status == 404 and isinstance(given, dict) and "model" in given:
                given = {**given, "model": "nothing"}
            answered = strict.ask(method, filled(path, **of), given, headers)
            assert answered.status == status, (path, status, answered.status, answered.body)
            check(answered, operation)
            seen.add((path, method, status))

    occurs(400, b"{", version="x")
    occurs(401, headers={})
    occurs(403, headers={"Origin": "https://example.org", **BEARER})
    occurs(404, name="nothing")
    occurs(413, b" " * (MOST_BYTES + 1))
    occurs(415, headers={"Content-Type": "text/plain", "Content-Encoding": "br", **BEARER})

    slow = {path: half(strict, filled(path), 1) for path, _, code in described if code == 504}
    for path, connection in slow.items():
        with connection:
            assert read_all(connection).startswith(b"HTTP/1.1 504 ")
        seen.add((path, "POST", 504))

    with monkeypatch.context() as patch:

        async def fail(*_: object, **__: object) -> None:
            raise ValueError("a fault")

        patch.setattr(Scheduler, "submit", fail)
        occurs(500)

    end = time.monotonic() + 240
    for one in described:
        while one[1:] == ("POST", 503) and one not in seen:
            assert time.monotonic() < end
            with half(strict, "/embed", MOST_BYTES - 1):  # which takes all memory until it is given up
                for _ in range(100):
                    if strict.post(one[0], b" " * 100, BEARER).status == 503:
                        seen.add(one)
                        break
    # Another server of this process is ready.
    monkeypatch.setattr("polyhead_server.http.application.any_ready", strict.running.runtime.serving)
    strict.running.drain(0)
    failed = threading.Event()
    for name in ("tiny", "tiny-tokens"):
        strict.running.loop.call_soon_threadsafe(strict.running.runtime.registry.fail, name, 1, "a fault")
    strict.running.loop.call_soon_threadsafe(failed.set)
    assert failed.wait(120)
    unavailable = {key: one for key, one in described.items() if key[1:] == ("GET", 503)}
    for (path, method, code), operation in unavailable.items():
        answered = strict.get(filled(path), **BEARER)
        assert answered.status == code, (path, answered.body)
        check(answered, operation)
        seen.add((path, method, code))

    assert seen == set(described)


def test_the_document_needs_a_token_where_there_are_tokens(strict: OverHttp) -> None:
    assert strict.get("/openapi.json").status == 401
    answered = strict.ask("GET", "/openapi.json", headers=BEARER)
    described = {path: operation for path, _, operation in operations(answered.json)}
    free = {path for path, operation in described.items() if "security" not in operation}
    assert free == {"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"}
    assert json.loads(answered.body)["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_tokens_for_management_alone_close_no_path(serve_over_http: StartHttp, tmp_path: Path) -> None:
    tokens = tmp_path / "management"
    tokens.write_text(TOKEN)
    document = serve_over_http(management_token_file=tokens).get("/openapi.json").json
    assert not any("security" in operation for _, _, operation in operations(document))
