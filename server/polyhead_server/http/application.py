"""The ASGI application: what each path answers, and to whom."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import Any, TypeVar

import orjson
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
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
from polyhead_server.errors import InvalidRequestError, TooLargeError, shorten
from polyhead_server.http import embeddings as embed
from polyhead_server.http import errors, reranking, scoring, sparse
from polyhead_server.http.bodies import Bodies, Reply, until_left
from polyhead_server.http.calls import ApiCall, CallForm, Kept, cheapest, halves, named_or_only, parts_of
from polyhead_server.http.documents import Field, Fields, read_json
from polyhead_server.http.endpoint import (
    JSON_BYTES,
    PRIORITY,
    TIMEOUT,
    Answer,
    Caller,
    Endpoint,
)
from polyhead_server.http.messages import json_form, to_json
from polyhead_server.http.openapi import document, like
from polyhead_server.http.tensors import (
    NUMBERS_AT_ONCE,
    REQUEST,
    SAMPLE,
    IsBinary,
    Parameters,
    read_request,
    write_reply,
)
from polyhead_server.http.threadsafe import ThreadsafeRuntime
from polyhead_server.inference.reply import detach
from polyhead_server.inference.wire import LARGE, InferRequest
from polyhead_server.observability import counter_slots as slots
from polyhead_server.observability.metrics import Metrics
from polyhead_server.observability.request_log import RequestLog
from polyhead_server.observability.shared_counters import NO_MODEL, SharedCounters
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.budget import Reservation
from polyhead_server.settings import Settings
from polyhead_server.transport.access import guards

_BINARY = "application/octet-stream"
_PLAIN = "text/plain; charset=utf-8"
_INDEX = Fields({"ready": Field("Whether to leave out what is not ready", [bool])}, example={"ready": True})
_BYTES_PER_NUMBER = 12
_COPIED_PER_PARSED = 64
"""Binary tensors are only copied: so many bytes of them take as long as a byte of JSON."""

T = TypeVar("T")
_Translate = Callable[[memoryview, Parameters], tuple[int, T]]


class Inferences:
    """Answer inference requests: of the Open Inference Protocol, and calls of other APIs.

    Args:
        runtime: The runtime.
        bodies: Reads requests.
    """

    def __init__(self, runtime: ThreadsafeRuntime, bodies: Bodies) -> None:
        self._runtime = runtime
        self._bodies = bodies
        self._created = int(time.time())

    @asynccontextmanager
    async def infer(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2/models/NAME/infer`."""
        model, version = _named(caller)

        def work_bytes(body: memoryview) -> int:
            size = JSON_BYTES.read(caller.request)
            return len(body) if size is None else size + len(body) // _COPIED_PER_PARSED

        def translate(body: memoryview, given: Parameters) -> tuple[int, tuple[InferRequest, IsBinary]]:
            size = JSON_BYTES.read(caller.request)
            request, is_binary = read_request(body, size, model=model, version=version, given=given)
            return request.size, (request, is_binary)

        with self._runtime.reserve() as held:
            (request, is_binary), deadline = await self._read(
                caller, translate, held, types=[_BINARY], work_bytes=work_bytes
            )
            async with until_left(caller.request.receive):
                reply = await self._runtime.infer(request, detach, deadline=deadline, held=held)
                del request  # before the reply is translated and sent
                written = write_reply(reply, is_binary)
                cost = _BYTES_PER_NUMBER * written.elements
                if not written.raw and written.elements > NUMBERS_AT_ONCE:
                    yield Reply(content=written.json, work_bytes=cost)
                    return
                text: bytes = await self._bodies.run(cost, b"".join, written.json)
                if not written.raw:
                    yield Reply.of(text)
                    return
                size = len(text) + sum(map(len, written.raw))
                headers = {JSON_BYTES.name: str(len(text))}
                yield Reply(content=(text, *written.raw), size=size, media_type=_BINARY, headers=headers)

    def call(self, form: CallForm) -> Answer:
        """Return what answers calls of a form, which become inference requests."""

        @asynccontextmanager
        async def answer(caller: Caller) -> AsyncIterator[Reply]:
            models = [signature.name for signature in self._models(form)]

            def translate(
                body: memoryview, given: Parameters
            ) -> tuple[int, tuple[ApiCall, Signature, list[range]]]:
                fields = form.fields.read(read_json(body), "the request")
                registry = self._runtime.registry
                named = registry.find(named_or_only(fields, models, form.does)).signature
                call = form.read(fields, named, given)
                graphs = (model.signature for model in registry.models())
                signature = cheapest(named, graphs, call.roles)
                call.check(signature)
                return len(body), (call, signature, parts_of(call, self._runtime.settings))

            with self._runtime.reserve() as held:
                (call, signature, parts), deadline = await self._read(caller, translate, held)
                async with until_left(caller.request.receive):
                    kept = await self._infer_parts(call, signature, parts, deadline, held)
                    values, tokens = call.values(kept)
                    content = form.write(call, signature, tokens, *values)
                    numbers = sum(each.size for each in kept) // 4
                    cost = _BYTES_PER_NUMBER * numbers + call.returned_bytes
                    yield Reply.of(await self._bodies.run(cost, b"".join, content))

        return answer

    async def _infer_parts(
        self,
        call: ApiCall,
        signature: Signature,
        parts: Iterable[range],
        deadline: float,
        held: Reservation,
    ) -> list[Kept]:
        """Return what is kept of the replies to the parts of a call, each made when its turn comes.

        One that is too large is sent in halves.
        """
        kept = []
        for part in parts:
            try:
                with call.located(part):
                    each = await self._infer_part(call, signature, part, deadline, held)
            except TooLargeError:
                if len(part) == 1:
                    raise
                kept += await self._infer_parts(call, signature, halves(part), deadline, held)
            else:
                kept.append(each)
        return kept

    async def _infer_part(
        self, call: ApiCall, signature: Signature, part: range, deadline: float, held: Reservation
    ) -> Kept:
        began_ns, settings = time.perf_counter_ns(), self._runtime.settings
        before = held.bytes
        kept: Kept | None = None
        try:
            size = sum(each.text_bytes + each.tokens for each in call.sizes[part.start : part.stop])
            request = await self._bodies.run(size, call.request, signature, settings, part)
            held.add(request.size)
        except (Exception, asyncio.CancelledError) as error:
            self._count(error, time.perf_counter_ns() - began_ns)
            raise
        try:
            kept = await self._runtime.infer(
                request, call.keep, deadline=deadline, held=held, most_bytes=call.most_bytes(part, settings)
            )
            return kept
        finally:
            held.add(before + (0 if kept is None else kept.size) - held.bytes)

    @asynccontextmanager
    async def models(self, _: Caller) -> AsyncIterator[Reply]:
        """Answer `/v1/models`."""
        listed = [embed.listed_model(one.name, self._created) for one in self._models(embed.OPENAI)]
        yield _json({"object": "list", "data": listed})

    @asynccontextmanager
    async def model(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/v1/models/NAME`."""
        signature = self._runtime.registry.find(_named(caller)[0]).signature
        yield _json(embed.listed_model(signature.name, self._created))

    def _models(self, form: CallForm) -> list[Signature]:
        """Return the models that calls of a form are for."""
        signatures = {model.signature.name: model.signature for model in self._runtime.registry.models()}
        return [signature for signature in signatures.values() if form.serves(signature)]

    async def _read(
        self,
        caller: Caller,
        translate: _Translate[T],
        held: Reservation,
        *,
        types: Sequence[str] = (),
        work_bytes: Callable[[memoryview], int] = len,
    ) -> tuple[T, float]:
        """Read and translate an inference; count one that is rejected here.

        Args:
            caller: Has sent it.
            translate: Returns what a body and the parameters that headers give stand for, and the bytes that
                this keeps in memory.
            held: Has the bytes.
            types: Media types that the body may have, beside JSON.
            work_bytes: Returns what it costs to translate a body, in bytes of JSON.

        Returns:
            What it stands for, and its deadline.
        """
        began_ns, began = time.perf_counter_ns(), time.monotonic()
        try:
            seconds, priority = TIMEOUT.read(caller.request), PRIORITY.read(caller.request)
            given = {} if priority is None else {"priority": priority}
            caller.check_type(*types)
            body = await self._bodies.read(caller.request, held)
            size, translated = await self._bodies.run(work_bytes(body), translate, body, given)
            del body
            held.add(size - held.bytes)
            return translated, math.inf if seconds is None else began + seconds
        except (Exception, asyncio.CancelledError) as error:
            self._count(error, time.perf_counter_ns() - began_ns)
            raise

    def _count(self, error: BaseException, total_ns: int) -> None:
        """Count an inference that is rejected here.

        A variable of the caller's would refer to the error, and its traceback to the caller and the body.
        """
        counted = InvalidRequestError(error.detail) if isinstance(error, HTTPException) else error
        count = self._runtime.registry.unattributed.failed
        self._runtime.soon(partial(count, total_ns=total_ns, error=counted))


class HttpProcedures:
    """Answer what is not inference: health, metadata, configuration, statistics, the index.

    Args:
        runtime: The runtime.
        bodies: Reads requests.
    """

    def __init__(self, runtime: ThreadsafeRuntime, bodies: Bodies) -> None:
        self._runtime = runtime
        self._bodies = bodies

    @asynccontextmanager
    async def live(self, _: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2/health/live`."""
        yield _json({"live": True})

    @asynccontextmanager
    async def ready(self, _: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2/health/ready`."""
        ready = bool(self._runtime.serving())
        yield _json({"ready": ready}, 200 if ready else 503)

    @asynccontextmanager
    async def model_ready(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2/models/NAME/ready`."""
        name, version = _named(caller)
        self._runtime.registry.slot(name, version)
        response = await self._runtime.call("ModelReady", pb.ModelReadyRequest(name=name, version=version))
        yield _json({"name": name, "ready": response.ready}, 200 if response.ready else 503)

    def call(self, procedure: str, field: str = "", form: Fields | None = None) -> Answer:
        """Return what answers with the response of a procedure, or with one field of it.

        Args:
            procedure: Its name. The path has fields of its request.
            field: The field; empty for all.
            form: The fields of its request that the body has.
        """
        rpc = RPCS[procedure]

        @asynccontextmanager
        async def answer(caller: Caller) -> AsyncIterator[Reply]:
            fields = caller.request.path_params
            if form is not None:
                caller.check_type(_BINARY)
                with self._runtime.reserve() as held:
                    body = await self._bodies.read(caller.request, held)
                    fields = fields | form.read(read_json(body) if body else {}, "the request")
            response = to_json(await self._runtime.call(procedure, rpc.request(**fields)))
            yield _json(response[field] if field else response)

        return answer


class Observations:
    """Answer metrics and probes, and describe all paths.

    Args:
        counters: The counters of all workers.
        bodies: Has threads.
        routes: All routes, for the OpenAPI document.
    """

    def __init__(self, counters: SharedCounters, bodies: Bodies, routes: Sequence[Route]) -> None:
        self._counters = counters
        self._routes = routes
        self._bodies = bodies
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(Metrics(counters))

    @asynccontextmanager
    async def metrics(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/metrics`."""
        try:
            encoder, media_type = choose_encoder(caller.request.headers.get("accept", ""))
        except TypeError:  # the version that is asked for is none
            encoder, media_type = choose_encoder("")
        text: bytes = await self._bodies.run(LARGE, encoder, self._registry)
        yield Reply.of(text, media_type=media_type)

    @asynccontextmanager
    async def live(self, _: Caller) -> AsyncIterator[Reply]:
        """Answer `/healthz`."""
        yield Reply.of(b"ok\n", media_type=_PLAIN)

    @asynccontextmanager
    async def ready(self, _: Caller) -> AsyncIterator[Reply]:
        """Answer `/readyz`."""
        if self._counters.total(*NO_MODEL)[slots.SERVING] > 0:
            yield Reply.of(b"ok\n", media_type=_PLAIN)
        else:
            text = b"not ready: loading, draining, or without a model\n"
            yield Reply.of(text, status=503, media_type=_PLAIN)

    @asynccontextmanager
    async def document(self, _: Caller) -> AsyncIterator[Reply]:
        """Answer `/openapi.json`."""
        yield Reply.of(self._document)

    @cached_property
    def _document(self) -> bytes:
        """The OpenAPI document. It takes milliseconds to make, and routes never change."""
        return orjson.dumps(document(self._routes))


_MakeRoute = Callable[..., Route]


def create_application(
    settings: Settings,
    counters: SharedCounters,
    workers: Executor,
    *,
    runtime: ThreadsafeRuntime | None = None,
    log: RequestLog | None = None,
) -> Starlette:
    """Return the application.

    Args:
        settings: The limits, tokens and origins.
        counters: The counters of all workers.
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
        guards=() if runtime is None else guards(settings, runtime.registry.unattributed),
        origins=settings.http_origin,
        local_only=is_loopback(settings.http_host) and not protected,
    )

    def route(path: str, answer: Answer, summary: str, reply: Any, **options: Any) -> Route:
        endpoint = make(answer=answer, summary=summary, reply=reply, **options)
        return Route(path, endpoint, methods=["GET" if endpoint.request is None else "POST"])

    routes: list[Route] = []
    if runtime is not None:
        inferences = Inferences(runtime, bodies)
        routes += _open_inference_routes(route, HttpProcedures(runtime, bodies), inferences, log)
        routes += _call_routes(route, inferences, log)
    routes += _observation_routes(route, Observations(counters, bodies, routes))
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
    route: _MakeRoute, procedures: HttpProcedures, inferences: Inferences, log: RequestLog | None
) -> Iterator[Route]:
    def call(path: str, procedure: str, summary: str, field: str = "", form: Fields | None = None) -> Route:
        answer = procedures.call(procedure, field, form)
        schema = json_form(RPCS[procedure].response).schema
        reply = schema["properties"][field] if field else schema
        return route(path, answer, summary, reply, procedure=procedure, request=form)

    models = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    headers = [TIMEOUT, PRIORITY, JSON_BYTES]
    infer = {"request": REQUEST, "headers": headers, "procedure": "ModelInfer", "log": log}
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


def _call_routes(route: _MakeRoute, inferences: Inferences, log: RequestLog | None) -> Iterator[Route]:
    def call(path: str, form: CallForm, body: errors.ErrorBody, summary: str, reply: Any) -> Route:
        options = {"headers": [TIMEOUT, PRIORITY], "procedure": "ModelInfer", "log": log}
        return route(path, inferences.call(form), summary, reply, request=form.fields, body=body, **options)

    reply: Any = {"anyOf": [like(sample) for sample in embed.SAMPLES]}
    yield call("/v1/embeddings", embed.OPENAI, errors.openai, "Embed texts, as OpenAI's API does", reply)
    like_tei = "as Text Embeddings Inference does"
    yield call("/embed", embed.TEI, errors.tei, f"Embed texts, {like_tei}", like([[0.0]]))
    words = like([[{"index": 0, "value": 0.0}]])
    yield call("/embed_sparse", sparse.TEI, errors.tei, f"Weigh words in texts, {like_tei}", words)
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
    yield index("/v1/models", inferences.models, "The models that embed", models)
    yield index("/v1/models/{name}", inferences.model, "A model that embeds", like(model))


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


def _named(caller: Caller) -> tuple[str, str]:
    """Return the model and the version that the path names; empty where it does not."""
    parameters = caller.request.path_params
    return parameters.get("name", ""), parameters.get("version", "")


def _json(value: object, status: int = 200) -> Reply:
    return Reply.of(orjson.dumps(value), status=status)
