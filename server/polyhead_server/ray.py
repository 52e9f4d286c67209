"""Serve on Ray: Serve places, scales and restarts replicas; each batches as a server of its own does.

Serve's gRPC proxy hands each call to the ingress, which hands it to a replica of the model's family. A Serve
config file names `polyhead_server.ray:build` and `polyhead_server.ray.add_services` (docs/deploy.md).
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import grpc
import ray
from cyclopts import App
from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError

from polyhead_proto import RPCS, SERVICE
from polyhead_proto.names import PUSHBACK, REQUEST_ID
from polyhead_server import errors
from polyhead_server.access.tokens import guard_of
from polyhead_server.address import listen, warn_if_exposed
from polyhead_server.engine.allocator import keep_trim
from polyhead_server.engine.cpus import available_cpus
from polyhead_server.errors import ErrorReply, StartError
from polyhead_server.inference.wire import parse_small, peek, split_infer
from polyhead_server.observability.access_log import logged_reply, request_id
from polyhead_server.observability.logs import LOGGER, configure
from polyhead_server.process import prepare
from polyhead_server.repository.scanning import list_families, no_models
from polyhead_server.runtime import Runtime
from polyhead_server.serving.procedures import server_metadata
from polyhead_server.settings import DEFAULT_SETTINGS, Settings

_STREAM = "ModelStreamInfer"
_NO_EFFECT = ("default", "grpc_option", "http", "management_token_file", "tls_")
_STATE_SECONDS = 2.0  # for a replica to say how it is, and between two checks of its health


def build(args: Mapping[str, Any]) -> serve.Application:
    """Build the application from `args` of a Serve config file, which are read as flags are."""
    values = {name: value if isinstance(value, list) else [value] for name, value in args.items()}
    flags = [f"--{name.replace('_', '-')}={value}" for name in values for value in values[name]]
    reader: Any = App(default_command=application, result_action="return_value")
    return reader(flags, exit_on_error=False, print_error=False)


def application(
    settings: Settings = DEFAULT_SETTINGS,
    *,
    families: tuple[str, ...] = (),
    replicas: int = 1,
    cpus: float = 1,
    gpus: float = 0,
) -> serve.Application:
    """Build the application: the ingress, and a deployment for each family. docs/deploy.md has the arguments.

    Raises:
        StartError: There is no family, or a setting cannot be used on Ray.
    """
    for field in fields(Settings):
        if field.name.startswith(_NO_EFFECT) and getattr(settings, field.name) != field.default:
            raise StartError(f"--{field.name.replace('_', '-')} has no effect on Ray: see docs/deploy.md")
    if settings.repository_mode == "explicit":
        raise StartError("--repository-mode must be none or poll on Ray: a call reaches one replica only")
    if settings.device.startswith("cuda") and (settings.device != "cuda" or not gpus):
        raise StartError(f"--device must be cuda, with gpus, on Ray, was {settings.device} with {gpus:g}")
    warn_if_exposed(replace(settings, host="0.0.0.0"))  # noqa: S104 - where Serve listens
    families = families or tuple(list_families(settings.models))
    if not families:
        raise no_models(settings.models)
    deployment = serve.deployment(
        num_replicas=replicas,
        max_ongoing_requests=4096,  # out of the way: a replica rejects by queued tokens
        health_check_period_s=_STATE_SECONDS,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )
    replica = deployment(FamilyReplica).options(ray_actor_options={"num_cpus": cpus, "num_gpus": gpus})
    ingress = deployment(Ingress).options(name="polyhead.ingress", ray_actor_options={"num_cpus": 0})
    # No family has a dot in its name.
    handles = {name: replica.options(name=name).bind(settings, name) for name in families}
    return ingress.bind(settings, handles)


def run(settings: Settings) -> int:
    """Serve with a Ray of this machine alone, until SIGTERM or SIGINT; return the exit code.

    Raises:
        StartError: A setting cannot be used on Ray, or it cannot start.
    """
    if settings.host not in {"0.0.0.0", "::"}:  # noqa: S104 - compared with
        raise StartError(f"--host must be 0.0.0.0, where Ray listens, was {settings.host}")
    families = list_families(settings.models)
    cpus = settings.threads or max(1, available_cpus() // settings.workers)
    app = application(settings, replicas=settings.workers, cpus=cpus, gpus=int(settings.device == "cuda"))
    try:
        with listen(settings.host, settings.port) as ours, listen("127.0.0.1", 0) as other:
            port, http_port = (each.getsockname()[1] for each in (ours, other))
        ray.init(address="local", num_cpus=cpus * settings.workers * len(families), include_dashboard=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler)  # after Ray has set its own
        grpc_options = {"port": port, "grpc_servicer_functions": [f"{__name__}.add_services"]}
        http_options = {"host": "127.0.0.1", "port": http_port}
        serve.start(proxy_location="HeadOnly", http_options=http_options, grpc_options=grpc_options)
        serve.run(app, name="polyhead")
        LOGGER.info("serving %s on port %d with Ray", ", ".join(families), port)
        signal.pause()
    except KeyboardInterrupt:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # another one does not interrupt the end
    except Exception as error:  # Ray has no type of its own for it
        raise StartError(f"Ray cannot start, with port {settings.port}: {error}") from error
    finally:
        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()
    return 0


@dataclass(frozen=True)
class ReplicaAnswer:
    """A message, or the status that ends a call: exceptions would lose their types between processes."""

    message: bytes = b""
    error: ErrorReply | None = None

    def SerializeToString(self) -> bytes:  # noqa: N802 - Serve calls it for what methods return
        """Return the message."""
        return self.message


class FamilyReplica:
    """Answer the requests of one family: a `Runtime` in an actor of Ray.

    Serve replaces a replica that cannot load what another one serves. Where none serves the family, replicas
    stay and say why: otherwise Serve would take the whole application for failed.
    """

    async def __init__(self, settings: Settings, family: str) -> None:  # type: ignore[misc]  # Serve awaits it
        configure(settings.log_level, settings.log_format)
        resources = ray.get_runtime_context().get_assigned_resources()  # without a GPU it may see all
        device = "cpu" if settings.device == "auto" and not resources.get("GPU") else settings.device
        prepare(device)
        threads = settings.threads or max(1, int(resources.get("CPU", 1)))
        self._family = family
        self._runtime = Runtime(replace(settings, device=device, threads=threads), families=[family])
        await self._runtime.start()
        with suppress(StartError):  # answers and the index say why
            await self._runtime.loaded()
        self._trimming = asyncio.create_task(keep_trim())

    async def check_health(self) -> None:
        """Fail if only another process can be of use. Serve also calls this before the first request."""
        if self._runtime.lifecycle.lost.is_set():
            raise StartError("the device failed for good")
        if not self._runtime.serving():
            replicas = serve.get_deployment_handle(self._family).broadcast("serves")
            with suppress(TimeoutError, DeploymentUnavailableError):  # the latter while none has started
                if True in await replicas.results_async(timeout_s=_STATE_SECONDS, return_exceptions=True):
                    raise StartError(f"{self._family} cannot be loaded here, and another replica serves it")

    async def serves(self) -> bool:
        """Return whether any model of the family is ready."""
        return bool(self._runtime.serving())

    async def answer(self, procedure: str, request: bytes, identifier: str) -> Sequence[ReplicaAnswer]:
        """Answer a request: with one message, or in the parts that a request of a stream asks for."""
        answers: list[ReplicaAnswer] = []

        async def send(message: bytes) -> None:
            answers.append(ReplicaAnswer(message))

        try:
            if procedure == _STREAM:
                await self._runtime.stream(request, send)
            elif procedure == "ModelInfer":
                await send(await self._runtime.infer(request))
            else:
                await send(await self._runtime.call(procedure, request))
        except Exception as error:
            answers.append(ReplicaAnswer(error=logged_reply(error, identifier)))
        return answers


class Ingress:
    """Answer the calls of Serve's gRPC servers, by methods with the names of the procedures."""

    def __init__(self, settings: Settings, families: Mapping[str, Any]) -> None:
        self._settings = settings
        self._families = families
        self._guard = guard_of(settings)

    async def stream(self, requests: AsyncIterator[bytes], grpc_context: Any) -> AsyncIterator[ReplicaAnswer]:
        """Answer the requests of a stream, one after the other, until one fails."""
        async for request in requests:
            for answer in await self.answer(_STREAM, request, grpc_context):
                yield answer
                if answer.error is not None:
                    return

    async def answer(self, procedure: str, request: bytes, context: Any) -> Sequence[ReplicaAnswer]:
        """Answer a request, and set the status of its call if that has failed."""
        identifier = request_id(context)
        answers: Sequence[ReplicaAnswer]
        if rejection := self._guard.rejection(RPCS[procedure].path, context.invocation_metadata()):
            answers = [ReplicaAnswer(error=logged_reply(rejection, identifier))]
        else:
            try:
                # A replica has the same limit, and says more.
                async with asyncio.timeout(self._settings.max_request_seconds + _STATE_SECONDS):
                    answers = await self._pass_on(procedure, request, identifier)
            except TimeoutError:
                late = errors.ExpiredError("no replica had an answer in time: the deadline has passed")
                answers = [ReplicaAnswer(error=logged_reply(late, identifier))]
            except errors.ServingError as error:
                answers = [ReplicaAnswer(error=logged_reply(error, identifier))]
        if (failure := answers[-1].error) is not None:
            context.set_code(failure.code)
            context.set_details(failure.message)
            context.set_trailing_metadata(list(failure.trailers))
        return answers

    async def _pass_on(self, procedure: str, request: bytes, identifier: str) -> Sequence[ReplicaAnswer]:
        if procedure in {"ModelStatistics", "RepositoryModelLoad", "RepositoryModelUnload"}:
            raise errors.UnsupportedError(f"{procedure} is not served on Ray: it reaches one replica only")
        if procedure == "ServerMetadata":
            metadata = server_metadata(self._settings)
            metadata.extensions.remove("statistics")
            return [ReplicaAnswer(metadata.SerializeToString())]
        if procedure in {"ServerLive", "ServerReady", "RepositoryIndex"}:
            asked = [each.answer.remote(procedure, request, identifier) for each in self._families.values()]
            within = (asyncio.wait_for(response, _STATE_SECONDS) for response in asked)
            replies = await asyncio.gather(*within, return_exceptions=True)
            # Joined, they are one message: true where one is true, with the lists of all.
            return [ReplicaAnswer(b"".join(each[0].message for each in replies if isinstance(each, list)))]
        if procedure in {"ModelInfer", _STREAM}:
            if len(request) > (most := self._settings.max_request_bytes):
                raise errors.TooLargeError(f"a request must have at most {most} bytes, had {len(request)}")
            name = peek(split_infer(request)).model
        else:
            message: Any = parse_small(RPCS[procedure].request, request)
            name = message.name
        if replicas := self._families.get(name.partition(".")[0]):
            return list(await replicas.answer.remote(procedure, request, identifier))
        if procedure == "ModelReady":  # for Triton no error
            return [ReplicaAnswer()]
        known = errors.listed(self._families)
        raise errors.UnknownModelError(f"model {errors.quoted(name)} is not served; families are {known}")


def _unary(procedure: str) -> Callable[..., Awaitable[ReplicaAnswer]]:
    async def call(self: Ingress, request: bytes, grpc_context: Any) -> ReplicaAnswer:
        (answer,) = await self.answer(procedure, request, grpc_context)
        return answer

    return call


for _procedure in RPCS:  # Serve finds methods by these names
    setattr(Ingress, _procedure, Ingress.stream if _procedure == _STREAM else _unary(_procedure))


def add_services(_servicer: object, server: Any) -> None:
    """Add the inference service to one of Serve's gRPC servers.

    Serve puts its own functions in the place of ours. They take a request as the deserialiser left it, so
    there is none: messages cross as bytes. Where Serve itself fails, callers are told to try again.
    """
    of_serve = server.service_handler_factory

    def explained(*, service_method: str, streaming_type: Any) -> Any:
        call = of_serve(service_method=service_method, streaming_type=streaming_type)

        async def unary(request: bytes, context: Any) -> bytes:
            reply: bytes = await call(request, context)
            _explain(context)
            return reply

        async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async for reply in call(requests, context):
                yield reply
            _explain(context)

        return stream if service_method == RPCS[_STREAM].path else unary

    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    handlers: Any = {name: (stream if name == _STREAM else unary)(lambda *_: None) for name in RPCS}
    server.service_handler_factory = explained
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.service_handler_factory = of_serve


def _explain(context: Any) -> None:
    """Replace a failure of Serve's own: others come with the request's id."""
    ours = any(key == REQUEST_ID for key, _ in context.trailing_metadata() or ())
    if context.code() not in {0, grpc.StatusCode.OK} and not ours:
        context.set_code(grpc.StatusCode.UNAVAILABLE)
        context.set_details("Ray has lost the process that had the request, or has none for it: try again")
        context.set_trailing_metadata(((PUSHBACK, "200"),))
