"""The procedures of `inference.GRPCInferenceService` other than inference, from message to message."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from google.protobuf.message import Message

from polyhead_proto import messages as pb
from polyhead_server.errors import InvalidRequestError, UnknownModelError, UnsupportedError, listed, quoted
from polyhead_server.serving import catalogue
from polyhead_server.serving.lifecycle import Lifecycle
from polyhead_server.serving.reconciler import Reconciler
from polyhead_server.serving.registry import Model, ModelState, Registry
from polyhead_server.settings import Settings

Procedure = Callable[[Any], Awaitable[Message]]


class Procedures:
    """Answer everything but inference: liveness, readiness, metadata, statistics, loading and unloading.

    Callers may load and unload only with `--repository-mode explicit`. Their requests carry no file, path or
    configuration: models come from the repository, and are checked as at the start.

    Args:
        registry: The models.
        lifecycle: The server's readiness.
        reconciler: Loads and unloads models.
        settings: The limits, which metadata publishes.
    """

    def __init__(
        self, registry: Registry, lifecycle: Lifecycle, reconciler: Reconciler, settings: Settings
    ) -> None:
        self._registry = registry
        self._lifecycle = lifecycle
        self._reconciler = reconciler
        self._settings = settings
        self._changes: set[asyncio.Task[None]] = set()
        self._by_name: dict[str, Procedure] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }

    def find(self, name: str) -> Procedure:
        """Return the function that answers a procedure's requests. It raises `RequestError`.

        Raises:
            UnsupportedError: There is no such procedure.
        """
        if name not in self._by_name:
            raise UnsupportedError(f"procedure must be one of {listed(self._by_name)}, was {quoted(name)}")
        return self._by_name[name]

    async def _server_live(self, _: pb.ServerLiveRequest) -> Message:
        return pb.ServerLiveResponse(live=True)

    async def _server_ready(self, _: pb.ServerReadyRequest) -> Message:
        return pb.ServerReadyResponse(ready=self._lifecycle.ready)

    async def _server_metadata(self, _: pb.ServerMetadataRequest) -> Message:
        return catalogue.server_metadata(self._settings)

    async def _model_ready(self, request: pb.ModelReadyRequest) -> Message:
        try:
            slot = self._registry.slot(request.name, request.version)
        except UnknownModelError:  # as in Triton: an unknown model is not ready
            return pb.ModelReadyResponse(ready=False)
        ready = slot.state is ModelState.READY and not self._lifecycle.draining.is_set()
        return pb.ModelReadyResponse(ready=ready)

    async def _model_metadata(self, request: pb.ModelMetadataRequest) -> Message:
        return catalogue.model_metadata(self._find(request), self._registry, self._settings)

    async def _model_config(self, request: pb.ModelConfigRequest) -> Message:
        return catalogue.model_config(self._find(request), self._settings)

    async def _model_statistics(self, request: pb.ModelStatisticsRequest) -> Message:
        models = [self._find(request)] if request.name else self._registry.models()
        return await asyncio.to_thread(catalogue.model_statistics, models, self._registry.metrics)

    async def _repository_index(self, request: pb.RepositoryIndexRequest) -> Message:
        return catalogue.repository_index(self._registry, ready_only=request.ready)

    async def _load(self, request: pb.RepositoryModelLoadRequest) -> Message:
        """Load a family as it is in the repository now, and return when it is served."""
        with self._lifecycle.accept():
            self._check_change(request)
            await self._finish(self._reconciler.load(request.model_name))
            return pb.RepositoryModelLoadResponse()

    async def _unload(self, request: pb.RepositoryModelUnloadRequest) -> Message:
        """Take a family out of service. Accepted requests finish; then its memory is freed."""
        with self._lifecycle.accept():
            self._check_change(request, "unload_dependents")
            await self._finish(self._reconciler.unload(request.model_name))
            return pb.RepositoryModelUnloadResponse()

    def _find(self, request: Any) -> Model:
        return self._registry.find(request.name, request.version)

    async def _finish(self, change: Coroutine[Any, Any, None]) -> None:
        """Finish a change even if its caller leaves."""
        task = asyncio.get_running_loop().create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # its caller may have left
        await asyncio.shield(task)

    def _check_change(self, request: Any, *accepted: str) -> None:
        if self._settings.repository_mode != "explicit":
            raise UnsupportedError(
                "models are not loaded or unloaded by call here: "
                "the server must be started with --repository-mode explicit and --management-token-file"
            )
        if request.repository_name:
            raise InvalidRequestError(f"repository_name must be empty, was {quoted(request.repository_name)}")
        for name in request.parameters:
            if name not in accepted:
                raise InvalidRequestError(
                    f"parameter {quoted(name)} is not taken: models come from the server's own repository, "
                    "with the configuration they have there"
                )
