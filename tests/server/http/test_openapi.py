"""The OpenAPI document: valid, complete, and true of what is answered."""

import http.client
import json
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from tests.server.http.conftest import Answered, OverHttp, StartHttp, over_http
from tests.servers import serving_metrics

from polyhead_server import Settings

TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 1, 16], "data": [0.5] * 16}
BODIES: dict[str, dict[str, Any]] = {
    "/infer": {"inputs": [TENSOR], "outputs": [{"name": "output"}]},
    "/v2/repository/index": {"ready": True},
    "/embeddings": {"model": "tiny-tokens", "input": "a dog"},
    "/similarity": {"model": "tiny-tokens", "inputs": {"source_sentence": "a dog", "sentences": ["a cat"]}},
    "/tokenize": {"model": "tiny-tokens", "inputs": "a dog"},
    "/decode": {"model": "tiny-tokens", "ids": [5, 6]},
    "/classify": {"model": "reranker", "input": ["a dog"]},
    "/embed": {"model": "tiny-tokens", "inputs": "a dog"},
    "/embed_sparse": {"model": "splade", "inputs": "a dog"},
    "/predict": {"model": "reranker", "inputs": "a dog"},
    "/v1/rerank": {"model": "reranker", "query": "a cat", "documents": ["a dog"]},
    "/v2/rerank": {"model": "reranker", "query": "a cat", "documents": ["a dog"], "return_evidence": True},
    "/rerank": {"model": "reranker", "query": "a cat", "texts": ["a dog"], "return_evidence": 2},
    "/v1/ranking": {"model": "reranker", "query": {"text": "a cat"}, "passages": [{"text": "a dog"}]},
    "/": {"model": "splade", "inputs": "a dog"},
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
    return path.replace("{name}", name or "tiny").replace("{version}", version)


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


def valid(document: Any, schema: Described) -> OAS31Validator:
    """A validator of what a schema of the document describes."""
    return OAS31Validator({**schema, "components": document["components"]})


def check(answered: Answered, operation: Described, document: Any) -> None:
    """Checks that a reply is what the document says of its status."""
    content = operation["responses"][str(answered.status)]["content"]
    media_type = answered.headers["content-type"].partition(";")[0]
    body = answered.json if media_type == "application/json" else answered.body.decode()
    valid(document, content[media_type]["schema"]).validate(body)


def test_the_document_is_valid(document: Any) -> None:
    validate(document)


def test_operations_have_names_of_their_own(document: Any) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]

    assert len(set(names)) == len(names) == 38
    assert {"create_embeddings", "infer", "infer_of_version", "rerank"} <= set(names)


def test_it_has_those_paths_alone_that_are_served(document: Any) -> None:
    few = {"/healthz", "/readyz", "/health", "/metrics", "/openapi.json"}
    with serving_metrics(Settings(models=Path("models"), http_port=0)) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", "/openapi.json")
        assert set(json.load(connection.getresponse())["paths"]) == few
        connection.close()
    assert few < set(document["paths"])


def test_every_path_answers_as_described(web: OverHttp, document: Any) -> None:
    for path, method, operation in operations(document):
        answered = web.ask(method, filled(path), body_of(path))
        assert answered.status == 200, (path, answered.body)
        check(answered, operation, document)
        if (body := body_of(path)) is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            validator = valid(document, schema)
            validator.validate(body)
            assert not validator.is_valid({**body, "unknown": 1})
            assert web.post(filled(path), {**body, "unknown": 1}).status == 400


@pytest.mark.parametrize("path", ["/rerank", "/classify", "/"])
def test_one_path_of_two_apis_takes_the_body_of_one(document: Any, path: str) -> None:
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    (body,) = [each for end, each in BODIES.items() if end == path]
    of_the_other: dict[str, dict[str, Any]] = {
        "/rerank": {"documents": ["a dog"]},
        "/classify": {"inputs": "a dog"},
        "/": {"query": "a cat", "texts": ["a dog"]},
    }

    assert len(schema["oneOf"]) == 2
    assert "anyOf" not in schema
    assert valid(document, schema).is_valid(body)
    assert not valid(document, schema).is_valid(body | of_the_other[path])


def test_every_field_and_parameter_is_explained(document: Any) -> None:
    bodies = set()
    for path, _, operation in operations(document):
        assert all(parameter["description"] for parameter in operation["parameters"]), path
        bodies |= set(re.findall(r"schemas/(\w+)", json.dumps(operation.get("requestBody", {}))))
    bodies |= {"InferInput", "InferOutput", "LabelParameters", "ComparedTexts", "EmbeddingOptions", "Passage"}

    assert len(bodies) == 20
    for name in bodies:
        fields = document["components"]["schemas"][name]["properties"]
        assert all("description" in field or "$ref" in json.dumps(field) for field in fields.values()), name


@pytest.fixture
def locked(serve_over_http: StartHttp, models: Path, tmp_path: Path) -> OverHttp:
    """A server with tokens, that takes little."""
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    return serve_over_http(models, token_file=tokens, max_request_bytes=MOST_BYTES)


def test_errors_are_those_that_are_described(locked: OverHttp) -> None:
    """What every path can be made to answer with; the slow tests have a property tester look for others."""
    document = locked.ask("GET", "/openapi.json", headers=BEARER).json
    seen = set()
    for status, body, headers, of in (
        (400, b"{", BEARER, {"version": "x"}),
        (401, None, {}, {}),
        (403, None, {"Origin": "https://example.org", **BEARER}, {}),
        (404, None, BEARER, {"name": "nothing"}),
        (413, b" " * (MOST_BYTES + 1), BEARER, {}),
        (415, None, {"Content-Type": "text/plain", "Content-Encoding": "br", **BEARER}, {}),
    ):
        for path, method, operation in operations(document):
            if str(status) not in operation["responses"] or (status == 400 and path == "/info"):
                continue  # that one needs several families
            given: Any = None if method == "GET" else body or body_of(path)
            if status == 404 and isinstance(given, dict) and "model" in given:
                given = {**given, "model": "nothing"}
            query = "?model=nothing" * (status == 404 and path == "/info")
            answered = locked.ask(method, filled(path, **of) + query, given, headers)
            assert answered.status == status, (path, answered.body)
            check(answered, operation, document)
            seen.add((status, path))

    assert len(seen) > 80


def test_the_document_needs_a_token_where_there_are_tokens(locked: OverHttp) -> None:
    assert locked.get("/openapi.json").status == 401
    answered = locked.ask("GET", "/openapi.json", headers=BEARER)
    described = {path: operation for path, _, operation in operations(answered.json)}
    free = {path for path, operation in described.items() if "security" not in operation}
    assert free == {"/healthz", "/readyz", "/health", "/v2/health/live", "/v2/health/ready"}
    assert json.loads(answered.body)["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_tokens_for_management_alone_close_no_path(serve_over_http: StartHttp, tmp_path: Path) -> None:
    tokens = tmp_path / "management"
    tokens.write_text(TOKEN)
    document = serve_over_http(management_token_file=tokens).get("/openapi.json").json
    assert not any("security" in operation for _, _, operation in operations(document))
