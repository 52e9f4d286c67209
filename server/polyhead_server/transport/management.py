"""`RepositoryModelLoad` and `RepositoryModelUnload`: families by name, out of the server's own repository.

`access.Guard` has seen to the caller's management token. A request carries no file, path or configuration:
what is served is what lies in the repository, checked as at the start.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from polyhead_proto import messages as pb
from polyhead_server.errors import InvalidRequestError, UnsupportedError, quoted
from polyhead_server.settings import Settings


class Loader(Protocol):
    """What follows orders: the reconciler, or all workers' together."""

    async def load(self, name: str) -> None:
        """Takes over what the repository holds of one family."""

    async def unload(self, name: str) -> None:
        """Takes a family out of service."""


class Management:
    """Loads and unloads at a caller's word.

    Args:
        loader: Does it.
        settings: Say whether callers may.
    """

    def __init__(self, loader: Loader, settings: Settings) -> None:
        self._loader = loader
        self._at_work: set[asyncio.Task[None]] = set()
        self._allowed = settings.repository_mode == "explicit" and settings.management_token_file is not None

    async def load(self, request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        """Takes over what the repository holds of a family now. Returns when it is served.

        Raises:
            UnsupportedError: The server was not started for it.
            InvalidRequestError: The request has parameters, or names another repository.
            UnknownModelError: There is no such family.
            NotLoadedError: It cannot be loaded; what was served still is.
        """
        self._check(request.repository_name, request.parameters)
        await self._finish(self._loader.load(request.model_name))
        return pb.RepositoryModelLoadResponse()

    async def unload(self, request: pb.RepositoryModelUnloadRequest) -> pb.RepositoryModelUnloadResponse:
        """Takes a family out of service. What it has accepted is finished; its memory is free after that.

        Raises:
            UnsupportedError: The server was not started for it.
            InvalidRequestError: The request has parameters, or names another repository.
            UnknownModelError: There is no such family.
        """
        self._check(request.repository_name, request.parameters, "unload_dependents")
        await self._finish(self._loader.unload(request.model_name))
        return pb.RepositoryModelUnloadResponse()

    async def _finish(self, order: Coroutine[Any, Any, None]) -> None:
        """Follows an order to its end, also where its caller goes away meanwhile."""
        task = asyncio.get_running_loop().create_task(order)
        self._at_work.add(task)
        task.add_done_callback(self._done)
        await asyncio.shield(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._at_work.discard(task)
        if not task.cancelled():
            task.exception()  # its caller has it, or has gone

    def _check(
        self, repository: str, parameters: Mapping[str, pb.ModelRepositoryParameter], *accepted: str
    ) -> None:
        if not self._allowed:
            raise UnsupportedError(
                "models are not loaded or unloaded by call here: "
                "the server must be started with --repository-mode explicit and --management-token-file"
            )
        if repository:
            raise InvalidRequestError(f"repository_name must be empty, was {quoted(repository)}")
        for name in parameters:
            if name not in accepted:
                raise InvalidRequestError(
                    f"parameter {quoted(name)} is not taken: models come from the server's own repository, "
                    "with the configuration they have there"
                )
