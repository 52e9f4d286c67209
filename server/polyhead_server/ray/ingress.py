"""The ingress: hands each request on to its family's replicas, by the name of the model in it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from grpc_health.v1 import health_pb2
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from polyhead_proto import RPCS, SERVICE
from polyhead_proto import messages as pb
from polyhead_proto.names import REQUEST_ID, WANTS_STATUS
from polyhead_proto.wire import split
from polyhead_server.errors import (
    ErrorReply,
    ExpiredError,
    TooLargeError,
    UnavailableError,
    UnknownModelError,
    UnsupportedError,
    listed,
    quoted,
)
from polyhead_server.grpc.access import guard_of
from polyhead_server.grpc.call import logged_reply
from polyhead_server.grpc.stream import MAX_IN_PROGRESS, failed_reply
from polyhead_server.inference.wire import parse_small, split_infer
from polyhead_server.observability.logs import configure
from polyhead_server.observability.request_log import request_id
from polyhead_server.ray.merging import merge_indexes, merge_statistics
from polyhead_server.ray.replica import Answer, broadcast
from polyhead_server.ray.services import CHECK, RETRY_MS, SECONDS
from polyhead_server.serving.catalogue import server_metadata
from polyhead_server.settings import Settings

_PATHS = {name: rpc.path for name, rpc in RPCS.items()} | {CHECK.rpartition("/")[2]: CHECK}
_STREAM = "ModelStreamInfer"

_NAME = pb.ModelInferRequest.MODEL_NAME_FIELD_NUMBER
_GRACE_SECONDS = 1.0
"""Late work is rejected by its replica. This is for work that has found none."""

_SERVE_FAILED = (RayError, BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError)


@dataclass(frozen=True, slots=True)
class Message:
    """The bytes of a message, for Serve, which serialises what methods return."""

    content: bytes = b""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Return the bytes."""
        return self.content


class Ingress:
    """Answer the calls of Serve's gRPC servers, by methods with the names of the procedures.

    Args:
        settings: The limits, and the file of tokens if callers need one.
        families: The handle of each family's replicas.
    """

    def __init__(self, settings: Settings, families: Mapping[str, Any]) -> None:
        configure(settings.log_level, settings.log_format)
        self._settings = settings
        self._families = families
        self._guard = guard_of(settings)
        self._answers: Mapping[str, Callable[[bytes, Any], Awaitable[Answer]]] = {
            "Check": self._check,
            "ModelConfig": partial(self._ask_one, "ModelConfig"),
            "ModelInfer": self._model_infer,
            "ModelMetadata": partial(self._ask_one, "ModelMetadata"),
            "ModelReady": self._model_ready,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "ServerLive": self._server_live,
            "ServerMetadata": self._server_metadata,
            "ServerReady": self._server_ready,
        }

    async def answer(self, procedure: str, request: bytes, context: Any) -> Message:
        """Answer a unary call; end it with the status of what it raises."""
        reply: Answer
        try:
            reply = self._rejection(procedure, context) or await self._find(procedure)(request, context)
        except Exception as error:
            reply = logged_reply(error, request_id(context))
        return _end(reply, context)

    async def stream(self, requests: AsyncIterator[bytes], grpc_context: Any) -> AsyncGenerator[Message]:
        """Answer the requests of a stream in their order. Several are worked on at once."""
        context = grpc_context
        if (rejection := self._rejection(_STREAM, context)) is not None:
            yield _end(rejection, context)
            return
        begun: asyncio.Queue[asyncio.Queue[Answer | None] | None] = asyncio.Queue(MAX_IN_PROGRESS)
        tasks: set[asyncio.Task[None]] = set()

        async def read() -> None:
            try:
                async for request in requests:
                    replies: asyncio.Queue[Answer | None] = asyncio.Queue(1)
                    await begun.put(replies)
                    task = asyncio.create_task(self._answer_in_stream(request, context, replies))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            except RayError:  # the proxy has ended, and its callers' connections with it
                pass
            except Exception as error:
                failed: asyncio.Queue[Answer | None] = asyncio.Queue(1)
                failed.put_nowait(logged_reply(error, request_id(context)))
                await begun.put(failed)
            await begun.put(None)  # not where this is cancelled: nobody takes it any more

        reading = asyncio.create_task(read())
        try:
            while (replies := await begun.get()) is not None:
                while (reply := await replies.get()) is not None:
                    yield _end(reply, context)
                    if isinstance(reply, ErrorReply):
                        return
        finally:
            for task in (reading, *tasks):
                task.cancel()

    # ---- Inference ---------------------------------------------------------------------------------

    async def _model_infer(self, request: bytes, context: Any) -> Answer:
        handle = self._family(self._model_of(request))
        seconds = self._seconds(context)
        return await _one(handle.infer.remote(request, seconds, request_id(context)), seconds)

    async def _answer_in_stream(
        self, request: bytes, context: Any, replies: "asyncio.Queue[Answer | None]"
    ) -> None:
        """Put the messages that answer one request of a stream, or the status that ends it; then None."""

        async def put(reply: Answer) -> None:
            if isinstance(reply, ErrorReply) and WANTS_STATUS not in context.invocation_metadata():
                reply = failed_reply(reply, request)
            await replies.put(reply)

        try:
            handle = self._family(self._model_of(request)).options(stream=True)
            seconds = self._seconds(context)
            async with asyncio.timeout(seconds + _GRACE_SECONDS):
                async for reply in handle.stream.remote(request, seconds, request_id(context)):
                    await put(reply)
        except Exception as error:
            await put(logged_reply(_explained(error), request_id(context)))
        await replies.put(None)

    def _model_of(self, request: bytes) -> str:
        """Return the name of the model that an inference request is for."""
        most = self._settings.max_request_bytes
        if len(request) > most:
            raise TooLargeError(
                f"a request must have at most {most} bytes, had {len(request)}: "
                "send fewer or shorter sequences"
            )
        _, (names,) = split(split_infer(request).header, _NAME)
        return str(names[-1], "utf-8", "replace") if names else ""

    # ---- The other procedures ----------------------------------------------------------------------

    async def _server_live(self, _request: bytes, _context: Any) -> Answer:
        return pb.ServerLiveResponse(live=True).SerializeToString()

    async def _server_ready(self, _request: bytes, _context: Any) -> Answer:
        return pb.ServerReadyResponse(ready=bool(await self._serving(""))).SerializeToString()

    async def _server_metadata(self, _request: bytes, _context: Any) -> Answer:
        return server_metadata(self._settings).SerializeToString()

    async def _model_ready(self, request: bytes, context: Any) -> Answer:
        name = parse_small(pb.ModelReadyRequest, request).name
        replies = await self._ask_all("ModelReady", request, context, [_family_of(name)])
        ready = any(pb.ModelReadyResponse.FromString(reply).ready for reply in replies)
        return pb.ModelReadyResponse(ready=ready).SerializeToString()

    async def _model_statistics(self, request: bytes, context: Any) -> Answer:
        """Sum up the counters of all replicas that run now."""
        name = parse_small(pb.ModelStatisticsRequest, request).name
        if name:
            self._family(name)
        families = [_family_of(name)] if name else list(self._families)
        replies = await self._ask_all("ModelStatistics", request, context, families)
        if name and not replies:  # one says why
            return await self._ask_one("ModelStatistics", request, context)
        return merge_statistics(map(pb.ModelStatisticsResponse.FromString, replies)).SerializeToString()

    async def _repository_index(self, request: bytes, context: Any) -> Answer:
        ready_only = parse_small(pb.RepositoryIndexRequest, request).ready
        # All at once: where a node has vanished, each family takes as long as replicas may take.
        asked = (self._ask_all("RepositoryIndex", request, context, [family]) for family in self._families)
        indexes = {
            family: list(map(pb.RepositoryIndexResponse.FromString, replies))
            for family, replies in zip(self._families, await asyncio.gather(*asked), strict=True)
        }
        return merge_indexes(indexes, ready_only=ready_only).SerializeToString()

    async def _check(self, request: bytes, context: Any) -> Answer:
        """Answer a health check of `grpc.health.v1`."""
        name = parse_small(health_pb2.HealthCheckRequest, request).service
        serving = await self._serving("" if name == SERVICE else name)
        if serving is None:
            raise UnknownModelError(f"no service {quoted(name)} is known here")
        status = health_pb2.HealthCheckResponse
        reply = status(status=status.SERVING if serving else status.NOT_SERVING)
        return bytes(reply.SerializeToString())

    # ---- Families ----------------------------------------------------------------------------------

    def _find(self, procedure: str) -> Callable[[bytes, Any], Awaitable[Answer]]:
        if procedure not in self._answers:
            raise UnsupportedError(
                "models are not loaded or unloaded by call on Ray: with `repository_mode: poll`, replicas "
                "follow the repository"
            )
        return self._answers[procedure]

    def _family(self, model: str) -> Any:
        """Return the handle of a model's family."""
        handle = self._families.get(_family_of(model))
        if handle is None:
            raise UnknownModelError(
                f"model {quoted(model)} is not served here; there are the families {listed(self._families)}"
            )
        return handle

    async def _serving(self, name: str) -> bool | None:
        """Return whether a replica is ready for a model, or for any; None if there is no such model."""
        if name and _family_of(name) not in self._families:
            return None
        handles = [self._families[_family_of(name)]] if name else list(self._families.values())
        answers = await asyncio.gather(*(broadcast(handle, "serving", name) for handle in handles))
        given = [one for answer in answers for one in answer]
        known = [one for one in given if one is not None]
        return None if given and not known else any(known)

    async def _ask_one(self, procedure: str, request: bytes, context: Any) -> Answer:
        """Ask one replica of the family of the model that a request names."""
        message: Any = parse_small(RPCS[procedure].request, request)
        handle = self._family(message.name)
        return await _one(handle.call.remote(procedure, request, request_id(context)), self._seconds(context))

    async def _ask_all(
        self, procedure: str, request: bytes, context: Any, families: Sequence[str]
    ) -> list[bytes]:
        """Ask all replicas of families; return the messages of those that answer."""
        handles = [self._families[family] for family in families if family in self._families]
        asked = (broadcast(handle, "call", procedure, request, request_id(context)) for handle in handles)
        return [one for answer in await asyncio.gather(*asked) for one in answer if isinstance(one, bytes)]

    def _seconds(self, context: Any) -> float:
        """Return how long the caller waits, or we let it."""
        left = dict(context.invocation_metadata()).get(SECONDS)
        most = self._settings.max_request_seconds
        return most if left is None else min(most, float(left))

    def _rejection(self, procedure: str, context: Any) -> ErrorReply | None:
        """Return what a caller without the right token gets."""
        rejection = self._guard.rejection(_PATHS[procedure], context.invocation_metadata())
        if rejection is None:
            return None
        code, message = rejection
        return ErrorReply(code=code, message=message, trailers=((REQUEST_ID, request_id(context)),))


def _method(procedure: str) -> Callable[..., Awaitable[Message]]:
    async def call(self: Ingress, request: bytes, grpc_context: Any) -> Message:
        return await self.answer(procedure, request, grpc_context)

    return call


for _procedure in _PATHS:  # Serve finds methods by these names, and `grpc_context` by its own
    setattr(Ingress, _procedure, Ingress.stream if _procedure == _STREAM else _method(_procedure))


def _family_of(model: str) -> str:
    return model.partition(".")[0]


def _end(reply: Answer, context: Any) -> Message:
    """Return a message for Serve, with which it passes on the status of a call, too."""
    if not isinstance(reply, ErrorReply):
        return Message(reply)
    context.set_code(reply.code)
    context.set_details(reply.message)
    context.set_trailing_metadata(list(reply.trailers))
    return Message()


async def _one(response: Awaitable[Answer], seconds: float) -> Answer:
    """Wait for one replica's answer.

    Raises:
        UnavailableError: It has ended, or Serve has none.
        ExpiredError: There is none in time.
    """
    try:
        async with asyncio.timeout(seconds + _GRACE_SECONDS):
            return await response
    except Exception as error:
        raise _explained(error) from error


def _explained(error: Exception) -> Exception:
    """Return what an exception of Serve's means to the caller; any other as it is."""
    if isinstance(error, TimeoutError):
        return ExpiredError("no replica had an answer in time: the deadline has passed")
    if isinstance(error, _SERVE_FAILED) and not isinstance(error, RayTaskError):
        return UnavailableError(
            "the replica that had the request has ended, or there is none: try again", retry_after_ms=RETRY_MS
        )
    return error
