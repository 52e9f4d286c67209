"""The ASGI application: what each path answers, and to whom."""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import orjson
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from polyhead_proto import RPCS
from polyhead_proto import messages as pb
from polyhead_proto.names import REQUEST_ID
from polyhead_server.errors import InvalidRequestError, quoted, shorten
from polyhead_server.http import embeddings as embed
from polyhead_server.http import errors
from polyhead_server.http.bodies import Bodies, LeftError, Reply, send_reply, until_left
from polyhead_server.http.documents import read_fields, read_json
from polyhead_server.http.remote import RemoteRuntime
from polyhead_server.http.tensors import NUMBERS_AT_ONCE, read_request, to_json, write_reply
from polyhead_server.inference.wire import LARGE
from polyhead_server.observability import counter_layout as layout
from polyhead_server.observability.logs import LOGGER
from polyhead_server.observability.metrics import Metrics
from polyhead_server.observability.request_log import RequestLog, request_id
from polyhead_server.observability.shared_counters import NO_MODEL, SharedCounters
from polyhead_server.observability.statistics import PROTOCOL
from polyhead_server.repository.signature import Signature
from polyhead_server.settings import Settings
from polyhead_server.transport.access import Guard, guards
from polyhead_server.transport.call import INFER

TIMEOUT = "x-request-timeout"
"""The header that says how many seconds the caller waits."""

PRIORITY = "x-request-priority"
"""The header that gives an embeddings call a priority, 1 to 5."""

HEADER_LENGTH = "inference-header-content-length"
"""The header that says how many bytes of JSON precede binary tensors."""

_CALLER_HEADERS = ("authorization", "content-type", TIMEOUT, PRIORITY, HEADER_LENGTH, REQUEST_ID)
_REPLY_HEADERS = (REQUEST_ID, HEADER_LENGTH, "retry-after")
_JSON = re.compile(r"application/(json|[\w.+-]+\+json)", re.I)
_BINARY = "application/octet-stream"
_PLAIN = "text/plain; charset=utf-8"
_PRIORITIES = ("1", "2", "3", "4", "5")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_BYTES = re.compile(r"[0-9]{1,12}")
_BYTES_PER_NUMBER = 12


class Caller:
    """One request: what its headers say, and its id."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._metadata = [(name, value) for name, value in request.headers.items()]
        self.id = request_id(self)
        self._metadata.append((REQUEST_ID, self.id))

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """Return the headers."""
        return self._metadata

    @property
    def deadline(self) -> float:
        """When the caller stops waiting, by `time.monotonic`.

        Raises:
            InvalidRequestError: The header is no number of seconds.
        """
        seconds = self.request.headers.get(TIMEOUT)
        if seconds is None:
            return math.inf
        if _SECONDS.fullmatch(seconds) is None:
            raise InvalidRequestError(
                f"{TIMEOUT} must be a number of seconds such as 1.5, was {quoted(seconds)}"
            )
        return time.monotonic() + float(seconds)

    def check_type(self, *also: str) -> None:
        """Check that the body is said to be JSON, or nothing is said of it.

        Raises:
            HTTPException: It is said to be something else.
        """
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip()
        if kind and not _JSON.fullmatch(kind) and kind.lower() not in also:
            raise HTTPException(
                415, f"Content-Type must be {' or '.join(('application/json', *also))}, was {quoted(kind)}"
            )

    @property
    def priority(self) -> Mapping[str, int]:
        """The request's parameters about priority.

        Raises:
            InvalidRequestError: The header is no priority.
        """
        priority = self.request.headers.get(PRIORITY)
        if priority is None:
            return {}
        if priority not in _PRIORITIES:
            raise InvalidRequestError(f"{PRIORITY} must be 1 (the highest) to 5, was {quoted(priority)}")
        return {"priority": int(priority)}


Answer = Callable[[Caller], AbstractAsyncContextManager[Reply]]
"""Answers a request. The block ends when the reply has been sent."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One path: check who calls, answer, and send the reply or the error. An ASGI application."""

    answer: Answer
    bodies: Bodies
    """Sends the reply."""
    method: str | None = None
    """What the path corresponds to in gRPC, for the guards; None is open to everybody."""
    remote: RemoteRuntime | None = None
    guards: Sequence[Guard] = ()
    """Reject callers without the right token."""
    origins: Sequence[str] = ()
    """The web origins whose pages may call."""
    log: RequestLog | None = None
    """Records inferences; None: this is none."""
    body: errors.ErrorBody = errors.open_inference
    """Writes errors."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        PROTOCOL.set(layout.HTTP)
        caller = Caller(Request(scope, receive, send))
        try:
            async with AsyncExitStack() as stack:
                with self._recorded(caller):
                    try:
                        self._check(caller)
                        reply = await stack.enter_async_context(self.answer(caller))
                    except LeftError:
                        raise asyncio.CancelledError from None
                    except Exception as error:
                        reply = errors.error_reply(error, caller, self.body)
                reply.headers.setdefault(REQUEST_ID, caller.id)
                await send_reply(reply, scope, send, self.bodies)
        except (LeftError, asyncio.CancelledError):
            LOGGER.debug("HTTP: the caller of %s has left", caller.id)

    def _recorded(self, caller: Caller) -> AbstractContextManager[None]:
        return self.log.request(caller) if self.log is not None and self.log.wanted else nullcontext()

    def _check(self, caller: Caller) -> None:
        """Check where a caller comes from, and its token.

        Raises:
            HTTPException: It may not call.
        """
        origin = caller.request.headers.get("origin")
        if origin is not None and origin not in self.origins:
            raise HTTPException(
                403, f"pages of {quoted(origin)} may not call: the server must be started with --http-origin"
            )
        if self.method is None or self.remote is None:
            return
        for guard in self.guards:
            if rejection := guard.rejection(self.method, caller.invocation_metadata()):
                self.remote.soon(partial(guard.count, self.method, rejection))
                raise HTTPException(errors.STATUS[rejection[0]], rejection[1])


class Inferences:
    """Answer inference requests: of the Open Inference Protocol, and embeddings calls.

    Args:
        remote: The runtime.
        bodies: Reads requests.
    """

    def __init__(self, remote: RemoteRuntime, bodies: Bodies) -> None:
        self._remote = remote
        self._bodies = bodies
        self._created = int(time.time())

    @asynccontextmanager
    async def infer(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2/models/NAME/infer`."""
        deadline = caller.deadline
        async with self._read(caller, _BINARY) as body:
            length = caller.request.headers.get(HEADER_LENGTH)
            if length is not None and _BYTES.fullmatch(length) is None:
                raise InvalidRequestError(f"{HEADER_LENGTH} must be a number of bytes, was {quoted(length)}")
            model, version = _named(caller)
            read = partial(read_request, model=model, version=version)
            json_size = None if length is None else int(length)
            request, form = await self._bodies.run(len(body), read, body, json_size)
        async with self._answered(caller, request, deadline) as reply:
            written = write_reply(reply, form)
            effort = _BYTES_PER_NUMBER * written.elements
            if not written.raw and written.elements > NUMBERS_AT_ONCE:
                yield Reply(content=written.json, effort=effort)
                return
            text: bytes = await self._bodies.run(effort, b"".join, written.json)
            if not written.raw:
                yield Reply.of(text)
                return
            size = len(text) + sum(map(len, written.raw))
            headers = {HEADER_LENGTH: str(len(text))}
            yield Reply(content=(text, *written.raw), size=size, media_type=_BINARY, headers=headers)

    @asynccontextmanager
    async def openai(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/v1/embeddings`."""
        async with self._embedded(caller, embed.read_openai) as (call, vectors, tokens):
            content = embed.write_openai(call, vectors, tokens)
            yield Reply.of(await self._bodies.run(_BYTES_PER_NUMBER * vectors.size, b"".join, content))

    @asynccontextmanager
    async def tei(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/embed`."""
        read = partial(embed.read_tei, models=[signature.name for signature in self._models()])
        async with self._embedded(caller, read) as (call, vectors, _):
            content = embed.write_tei(call, vectors)
            yield Reply.of(await self._bodies.run(_BYTES_PER_NUMBER * vectors.size, b"".join, content))

    @asynccontextmanager
    async def models(self, _: Caller) -> AsyncIterator[Reply]:
        """Answer `/v1/models`."""
        yield Reply.of(embed.write_models(self._models(), self._created))

    @asynccontextmanager
    async def model(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/v1/models/NAME`."""
        signature = self._remote.registry.find(_named(caller)[0]).signature
        yield Reply.of(embed.write_model(signature, self._created))

    def _models(self) -> list[Signature]:
        """Return the models that embed."""
        signatures = {model.signature.name: model.signature for model in self._remote.registry.models()}
        return [signature for signature in signatures.values() if embed.embeds(signature)]

    @asynccontextmanager
    async def _embedded(
        self, caller: Caller, read: Callable[[bytes], embed.EmbeddingsCall]
    ) -> AsyncIterator[tuple[embed.EmbeddingsCall, NDArray[np.float32], int]]:
        deadline, priority = caller.deadline, caller.priority

        def translate(body: bytes) -> tuple[embed.EmbeddingsCall, bytes]:
            call = read(body)
            call = replace(call, parameters={**call.parameters, **priority})
            signature = self._remote.registry.find(call.model).signature
            return call, embed.write_call(call, signature, self._remote.settings)

        async with self._read(caller) as body:
            call, request = await self._bodies.run(len(body), translate, body)
        async with self._answered(caller, request, deadline) as reply:
            yield call, *embed.read_vectors(reply)

    @asynccontextmanager
    async def _read(self, caller: Caller, *types: str) -> AsyncIterator[bytes]:
        """Read the body of an inference; count one that is rejected here."""
        began_ns = time.perf_counter_ns()
        try:
            caller.check_type(*types)
            async with self._bodies.read(caller.request) as body:
                yield body
        except Exception as error:
            counted: BaseException = error
            if isinstance(error, LeftError):
                counted = asyncio.CancelledError()
            elif isinstance(error, HTTPException):
                counted = InvalidRequestError(error.detail)
            count = self._remote.registry.unattributed.failed
            self._remote.soon(partial(count, total_ns=time.perf_counter_ns() - began_ns, error=counted))
            raise

    @asynccontextmanager
    async def _answered(self, caller: Caller, request: bytes, deadline: float) -> AsyncIterator[bytes]:
        receive = caller.request.receive
        async with until_left(receive), self._remote.infer(request, deadline=deadline) as reply:
            yield reply


class Procedures:
    """Answer what is not inference: health, metadata, configuration, statistics, the index.

    Args:
        remote: The runtime.
        bodies: Reads requests.
    """

    def __init__(self, remote: RemoteRuntime, bodies: Bodies) -> None:
        self._remote = remote
        self._bodies = bodies

    @asynccontextmanager
    async def live(self, _: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2/health/live`."""
        yield _json({"live": True})

    @asynccontextmanager
    async def ready(self, _: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2/health/ready`."""
        ready = bool(self._remote.serving())
        yield _json({"ready": ready}, 200 if ready else 503)

    @asynccontextmanager
    async def server(self, _: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2`."""
        described = to_json(await self._remote.call("ServerMetadata", pb.ServerMetadataRequest()))
        yield _json({**described, "extensions": [*described["extensions"], "binary_tensor_data"]})

    @asynccontextmanager
    async def model_ready(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2/models/NAME/ready`."""
        name, version = _named(caller)
        self._remote.registry.slot(name, version)
        response = await self._remote.call("ModelReady", pb.ModelReadyRequest(name=name, version=version))
        yield _json({"name": name, "ready": response.ready}, 200 if response.ready else 503)

    @asynccontextmanager
    async def model(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2/models/NAME`."""
        name, version = _named(caller)
        request = pb.ModelMetadataRequest(name=name, version=version)
        yield _json(to_json(await self._remote.call("ModelMetadata", request)))

    @asynccontextmanager
    async def config(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2/models/NAME/config`."""
        name, version = _named(caller)
        response = await self._remote.call("ModelConfig", pb.ModelConfigRequest(name=name, version=version))
        yield _json(to_json(response.config))

    @asynccontextmanager
    async def statistics(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2/models/NAME/stats` and `/v2/models/stats`."""
        name, version = _named(caller)
        request = pb.ModelStatisticsRequest(name=name, version=version)
        yield _json(to_json(await self._remote.call("ModelStatistics", request)))

    @asynccontextmanager
    async def index(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/v2/repository/index`."""
        caller.check_type(_BINARY)
        async with self._bodies.read(caller.request) as body:
            fields = read_fields(read_json(body) if body else {}, "the request", {"ready": [bool]})
        request = pb.RepositoryIndexRequest(ready=fields.get("ready", False))
        yield _json(to_json(await self._remote.call("RepositoryIndex", request))["models"])


class Observations:
    """Answer metrics and probes.

    Args:
        counters: The counters of all workers.
        bodies: Has threads.
    """

    def __init__(self, counters: SharedCounters, bodies: Bodies) -> None:
        self._counters = counters
        self._bodies = bodies
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(Metrics(counters))

    @asynccontextmanager
    async def metrics(self, caller: Caller) -> AsyncIterator[Reply]:
        """Answer `/metrics`."""
        encoder, media_type = choose_encoder(caller.request.headers.get("accept", ""))
        text: bytes = await self._bodies.run(LARGE, encoder, self._registry)
        yield Reply.of(text, media_type=media_type)

    @asynccontextmanager
    async def live(self, _: Caller) -> AsyncIterator[Reply]:
        """Answer `/healthz`."""
        yield Reply.of(b"ok\n", media_type=_PLAIN)

    @asynccontextmanager
    async def ready(self, _: Caller) -> AsyncIterator[Reply]:
        """Answer `/readyz`."""
        if self._counters.total(*NO_MODEL)[layout.SERVING] > 0:
            yield Reply.of(b"ok\n", media_type=_PLAIN)
        else:
            text = b"not ready: loading, draining, or without a model\n"
            yield Reply.of(text, status=503, media_type=_PLAIN)


def create_application(
    settings: Settings,
    counters: SharedCounters,
    workers: Executor,
    *,
    remote: RemoteRuntime | None = None,
    log: RequestLog | None = None,
) -> Starlette:
    """Return the application.

    Args:
        settings: The limits, tokens and origins.
        counters: The counters of all workers.
        workers: Runs work on large bodies.
        remote: The runtime, for inference; None serves metrics and probes only.
        log: Records inferences.

    Raises:
        StartError: A file of tokens cannot be used.
    """
    bodies = Bodies(settings, workers)
    seen = Observations(counters, bodies)
    make = partial(Endpoint, bodies=bodies, origins=settings.http_origin)
    routes = [
        Route("/healthz", make(answer=seen.live), methods=["GET"]),
        Route("/readyz", make(answer=seen.ready), methods=["GET"]),
    ]
    method = None
    if remote is not None:
        make = partial(make, remote=remote, guards=guards(settings, remote.registry.unattributed))
        inferences = Inferences(remote, bodies)
        routes += _embeddings_routes(make, inferences, log)
        routes += _open_inference_routes(make, Procedures(remote, bodies), inferences, log)
        method = _path("ServerMetadata")
    routes.append(Route("/metrics", make(answer=seen.metrics, method=method), methods=["GET"]))
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.http_origin,
        allow_methods=["GET", "POST"],
        allow_headers=_CALLER_HEADERS,
        expose_headers=_REPLY_HEADERS,
    )
    application = Starlette(
        routes=routes,
        middleware=[cors] if settings.http_origin else [],
        exception_handlers={HTTPException: _reject},
    )
    application.router.redirect_slashes = False
    return application


def _open_inference_routes(
    make: Callable[..., Endpoint], procedures: Procedures, inferences: Inferences, log: RequestLog | None
) -> Iterator[Route]:
    def get(path: str, answer: Answer, procedure: str | None) -> Route:
        method = None if procedure is None else _path(procedure)
        return Route(path, make(answer=answer, method=method), methods=["GET"])

    models = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    for model in models:  # first, since routes are tried in order
        yield Route(f"{model}/infer", make(answer=inferences.infer, method=INFER, log=log), methods=["POST"])
    yield get("/v2", procedures.server, "ServerMetadata")
    yield get("/v2/health/live", procedures.live, None)
    yield get("/v2/health/ready", procedures.ready, None)
    yield get("/v2/models/stats", procedures.statistics, "ModelStatistics")
    index = make(answer=procedures.index, method=_path("RepositoryIndex"))
    yield Route("/v2/repository/index", index, methods=["POST"])
    for model in models:
        yield get(model, procedures.model, "ModelMetadata")
        yield get(f"{model}/ready", procedures.model_ready, "ModelReady")
        yield get(f"{model}/config", procedures.config, "ModelConfig")
        yield get(f"{model}/stats", procedures.statistics, "ModelStatistics")


def _embeddings_routes(
    make: Callable[..., Endpoint], inferences: Inferences, log: RequestLog | None
) -> Iterator[Route]:
    openai = partial(make, body=errors.openai)
    call = openai(answer=inferences.openai, method=INFER, log=log)
    yield Route("/v1/embeddings", call, methods=["POST"])
    index = _path("RepositoryIndex")
    yield Route("/v1/models", openai(answer=inferences.models, method=index), methods=["GET"])
    yield Route("/v1/models/{name}", openai(answer=inferences.model, method=index), methods=["GET"])
    tei = make(answer=inferences.tei, method=INFER, log=log, body=errors.tei)
    yield Route("/embed", tei, methods=["POST"])


async def _reject(request: Request, error: Exception) -> Response:
    """Return the reply to a path or method that there is not."""
    assert isinstance(error, HTTPException)  # noqa: S101 - what it is registered for
    message = f"{error.detail}: {request.method} {shorten(request.url.path)}; docs/http.md lists the paths"
    body = errors.openai if request.url.path.startswith("/v1/") else errors.open_inference
    headers = {**(error.headers or {}), REQUEST_ID: Caller(request).id}
    return JSONResponse(body(error.status_code, message), error.status_code, headers)


def _path(procedure: str) -> str:
    return RPCS[procedure].path


def _named(caller: Caller) -> tuple[str, str]:
    """Return the model and the version that the path names; empty where it does not."""
    parameters = caller.request.path_params
    return parameters.get("name", ""), parameters.get("version", "")


def _json(value: object, status: int = 200) -> Reply:
    return Reply.of(orjson.dumps(value), status=status)
