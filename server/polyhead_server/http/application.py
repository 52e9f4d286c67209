"""The ASGI application: what each path answers, and to whom."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import cached_property, partial
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from polyhead_proto.names import REQUEST_ID
from polyhead_server.address import is_loopback
from polyhead_server.errors import shorten
from polyhead_server.grpc.access import Guard, guard_of
from polyhead_server.http import embeddings as embed
from polyhead_server.http import errors, reranking, scoring
from polyhead_server.http.bodies import Bodies, Reply
from polyhead_server.http.calls import CallForm
from polyhead_server.http.documents import Field, Fields, read_json
from polyhead_server.http.endpoint import (
    BINARY,
    INFERENCE,
    JSON_BYTES,
    PRIORITY,
    TIMEOUT,
    Answer,
    Caller,
    Endpoint,
)
from polyhead_server.http.inferences import Inferences
from polyhead_server.http.messages import json_form
from polyhead_server.http.openapi import document, like
from polyhead_server.http.tensors import REQUEST, SAMPLE
from polyhead_server.http.threadsafe import ThreadsafeRuntime
from polyhead_server.inference.wire import LARGE
from polyhead_server.observability.metrics import any_ready, exposition
from polyhead_server.observability.request_log import RequestLog
from polyhead_server.settings import Settings

_PLAIN = "text/plain; charset=utf-8"
_INDEX = Fields({"ready": Field("Whether to leave out what is not ready", [bool])}, example={"ready": True})


class HttpProcedures:
    """Answer what is not inference: health, metadata, configuration, statistics, lists of models.

    Args:
        runtime: The runtime.
        bodies: Reads requests.
    """

    def __init__(self, runtime: ThreadsafeRuntime, bodies: Bodies) -> None:
        self._runtime = runtime
        self._bodies = bodies
        self._created = int(time.time())

    async def live(self, _: Caller) -> Reply:
        """Answer `/v2/health/live`."""
        return _json({"live": True})

    async def ready(self, _: Caller) -> Reply:
        """Answer `/v2/health/ready`."""
        ready = bool(self._runtime.serving())
        return _json({"ready": ready}, 200 if ready else 503)

    async def model_ready(self, caller: Caller) -> Reply:
        """Answer `/v2/models/NAME/ready`."""
        name, version = caller.model
        self._runtime.registry.slot(name, version)
        response = await self._runtime.call("ModelReady", pb.ModelReadyRequest(name=name, version=version))
        return _json({"name": name, "ready": response.ready}, 200 if response.ready else 503)

    async def models(self, _: Caller) -> Reply:
        """Answer `/v1/models`."""
        served = embed.OPENAI.served(self._runtime.registry)
        listed = [embed.listed_model(one.name, self._created) for one in served]
        return _json({"object": "list", "data": listed})

    async def model(self, caller: Caller) -> Reply:
        """Answer `/v1/models/NAME`."""
        signature = self._runtime.registry.find(caller.model[0]).signature
        return _json(embed.listed_model(signature.name, self._created))

    def answer_of(self, procedure: str, field: str = "", body: Fields | None = None) -> Answer:
        """Return what answers with the response of a procedure, or with one field of it.

        Args:
            procedure: Its name. The path has fields of its request.
            field: The field; empty for all.
            body: The fields of its request that the body has.
        """
        rpc = RPCS[procedure]
        form = json_form(rpc.response)

        async def answer(caller: Caller) -> Reply:
            fields = caller.request.path_params
            if body is not None:
                caller.check_type(BINARY)
                with self._runtime.reserve() as held:
                    text = await self._bodies.read(caller.request, held)
                    fields = fields | body.read(read_json(text) if text else {}, "the request")
            response = form.write(await self._runtime.call(procedure, rpc.request(**fields)))
            return _json(response[field] if field else response)

        return answer


class Observations:
    """Answer metrics and probes, and describe all paths.

    Args:
        bodies: Has threads.
        routes: All routes, for the OpenAPI document.
    """

    def __init__(self, bodies: Bodies, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._bodies = bodies

    async def metrics(self, caller: Caller) -> Reply:
        """Answer `/metrics`."""
        accept = caller.request.headers.get("accept", "")
        text, media_type = await self._bodies.run(LARGE, exposition, accept)
        return Reply.of(text, media_type=media_type)

    async def live(self, _: Caller) -> Reply:
        """Answer `/healthz`."""
        return Reply.of(b"ok\n", media_type=_PLAIN)

    async def ready(self, _: Caller) -> Reply:
        """Answer `/readyz`."""
        if any_ready():
            return Reply.of(b"ok\n", media_type=_PLAIN)
        text = b"not ready: loading, draining, or without a model\n"
        return Reply.of(text, status=503, media_type=_PLAIN)

    async def document(self, _: Caller) -> Reply:
        """Answer `/openapi.json`."""
        return Reply.of(self._document)

    @cached_property
    def _document(self) -> bytes:
        """The OpenAPI document. It takes milliseconds to make, and routes never change."""
        return orjson.dumps(document(self._routes))


_MakeRoute = Callable[..., Route]


def create_application(
    settings: Settings,
    workers: Executor,
    *,
    runtime: ThreadsafeRuntime | None = None,
    log: RequestLog | None = None,
) -> Starlette:
    """Return the application.

    Args:
        settings: The limits, tokens and origins.
        workers: Runs work on large bodies.
        runtime: The runtime, for inference; None serves metrics and probes only.
        log: Records inferences.

    Raises:
        StartError: A file of tokens cannot be used.
    """
    protected = runtime is not None and (settings.token_file is not None or settings.tls_cert is not None)
    bodies = Bodies(settings, workers)
    make = partial(
        Endpoint,
        bodies=bodies,
        runtime=runtime,
        guard=Guard() if runtime is None else guard_of(settings),
        origins=settings.http_origin,
        local_only=is_loopback(settings.http_host) and not protected,
        log=log,
    )

    def route(path: str, answer: Answer, summary: str, reply: Any, **options: Any) -> Route:
        endpoint = make(answer=answer, summary=summary, reply=reply, **options)
        return Route(path, endpoint, methods=["GET" if endpoint.request is None else "POST"])

    routes: list[Route] = []
    if runtime is not None:
        procedures, inferences = HttpProcedures(runtime, bodies), Inferences(runtime, bodies)
        routes += _open_inference_routes(route, procedures, inferences)
        routes += _call_routes(route, procedures, inferences)
    routes += _observation_routes(route, Observations(bodies, routes))
    cors = Middleware(
        _CrossOrigin,
        allow_origins=settings.http_origin,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["*"],
    )
    application = Starlette(
        routes=routes,
        middleware=[cors] if settings.http_origin else [],
        exception_handlers={HTTPException: _no_such_route},
    )
    application.router.redirect_slashes = False
    return application


class _CrossOrigin(CORSMiddleware):
    """Tell browsers which pages may call."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Return the answer to the question whether a request may be sent."""
        response = super().preflight_response(request_headers)
        if not self.is_allowed_origin(request_headers["origin"]):
            response.status_code = 403
        return response


def _open_inference_routes(
    route: _MakeRoute, procedures: HttpProcedures, inferences: Inferences
) -> Iterator[Route]:
    def call(path: str, procedure: str, summary: str, field: str = "", body: Fields | None = None) -> Route:
        answer = procedures.answer_of(procedure, field, body)
        schema = json_form(RPCS[procedure].response).schema
        reply = schema["properties"][field] if field else schema
        return route(path, answer, summary, reply, procedure=procedure, request=body)

    models = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    infer = {"request": REQUEST, "headers": [TIMEOUT, PRIORITY, JSON_BYTES], "procedure": INFERENCE}
    for model in models:  # first, since routes are tried in order
        summary = "Infer: tensors in, tensors out"
        yield route(f"{model}/infer", inferences.infer, summary, like(SAMPLE), **infer)
    yield call("/v2", "ServerMetadata", "The server's name, version and extensions")
    yield route("/v2/health/live", procedures.live, "Whether this worker lives", like({"live": True}))
    ready = like({"ready": True})
    yield route("/v2/health/ready", procedures.ready, "Whether this worker is ready", ready, fails=True)
    yield call("/v2/repository/index", "RepositoryIndex", "The models and their states", "models", _INDEX)
    yield call("/v2/models/stats", "ModelStatistics", "Statistics of all models")
    ready = like({"name": "", "ready": True})
    for model in models:
        yield call(model, "ModelMetadata", "A model's inputs and outputs")
        yield call(f"{model}/config", "ModelConfig", "A model's configuration", "config")
        yield call(f"{model}/stats", "ModelStatistics", "A model's statistics")
        options = {"fails": True, "procedure": "ModelReady"}
        yield route(f"{model}/ready", procedures.model_ready, "Whether a model is ready", ready, **options)


def _call_routes(route: _MakeRoute, procedures: HttpProcedures, inferences: Inferences) -> Iterator[Route]:
    def call(path: str, form: CallForm, body: errors.ErrorBody, summary: str, reply: Any) -> Route:
        options = {"headers": [TIMEOUT, PRIORITY], "procedure": INFERENCE}
        return route(
            path, inferences.answer_to(form), summary, reply, request=form.fields, body=body, **options
        )

    reply: Any = {"anyOf": [like(sample) for sample in embed.SAMPLES]}
    yield call("/v1/embeddings", embed.OPENAI, errors.openai, "Embed texts, as OpenAI's API does", reply)
    like_tei = "as Text Embeddings Inference does"
    yield call("/embed", embed.TEI, errors.tei, f"Embed texts, {like_tei}", like([[0.0]]))
    words = like([[{"index": 0, "value": 0.0}]])
    yield call("/embed_sparse", embed.SPARSE, errors.tei, f"Weigh words in texts, {like_tei}", words)
    label = {"label": "", "score": 0.0}
    found = {"entity_group": "", "score": 0.0, "word": "", "start": 0, "end": 0}
    token = {"entity": "", "index": 0, "score": 0.0, "word": "", "start": 0, "end": 0}
    reply = {"anyOf": [like(one) for each in (label, found, token) for one in ([each], [[each]])]}
    yield call("/predict", scoring.PREDICT, errors.tei, f"Classify texts, {like_tei}, or tokens", reply)
    more: list[dict[str, Any]] = [{}, reranking.WITH_EVIDENCE]
    reply = {"anyOf": [like([{"index": 0, "score": 0.0} | each]) for each in more]}
    yield call("/rerank", reranking.RERANK, errors.tei, f"Rerank texts, {like_tei}", reply)
    results = [{"index": 0, "relevance_score": 0.0} | each for each in more]
    reply = {"anyOf": [like({"id": "", "results": [each], "meta": {}}) for each in results]}
    for version, form in reranking.COHERE.items():
        yield call(f"/v{version}/rerank", form, errors.cohere, "Rerank texts, as Cohere's API does", reply)
    index = partial(route, procedure="RepositoryIndex", body=errors.openai)
    model = embed.listed_model("", 0)
    models = like({"object": "list", "data": [model]})
    yield index("/v1/models", procedures.models, "The models that embed", models)
    yield index("/v1/models/{name}", procedures.model, "A model that embeds", like(model))


def _observation_routes(route: _MakeRoute, seen: Observations) -> Iterator[Route]:
    text = partial(route, reply=like(""), media_type="text/plain")
    yield text("/healthz", seen.live, "Whether the process lives")
    yield text("/readyz", seen.ready, "Whether any worker is ready", fails=True)
    yield text("/metrics", seen.metrics, "Prometheus metrics", procedure="ServerMetadata")
    yield route("/openapi.json", seen.document, "This document", like({}), procedure="ServerMetadata")


async def _no_such_route(request: Request, error: Exception) -> Response:
    """Return the reply to a path or method that there is not."""
    assert isinstance(error, HTTPException)  # noqa: S101 - what it is registered for
    path = request.scope["path"]
    message = f"{error.detail}: {request.method} {shorten(path)}; docs/http.md lists the paths"
    body = errors.openai if path.startswith("/v1/") else errors.open_inference
    headers = {**(error.headers or {}), REQUEST_ID: Caller(request).id}
    return JSONResponse(body(error.status_code, message), error.status_code, headers)


def _json(value: object, status: int = 200) -> Reply:
    return Reply.of(orjson.dumps(value), status=status)
