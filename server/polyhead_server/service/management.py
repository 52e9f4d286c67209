"""`RepositoryModelLoad` and `RepositoryModelUnload`: families by name, out of the server's own repository.

`access.Guard` has seen to the caller's management token. A request carries no file, path or configuration:
what is served is what lies in the repository, checked as at the start.
"""

from collections.abc import Mapping

from polyhead_proto import messages as pb
from polyhead_server.errors import InvalidRequestError, UnsupportedError, quoted
from polyhead_server.reconciler import Reconciler
from polyhead_server.settings import Settings


class Management:
    """Loads and unloads at a caller's word.

    Args:
        reconciler: Does it.
        settings: Say whether callers may.
    """

    def __init__(self, reconciler: Reconciler, settings: Settings) -> None:
        self._reconciler = reconciler
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
        await self._reconciler.load(request.model_name)
        return pb.RepositoryModelLoadResponse()

    async def unload(self, request: pb.RepositoryModelUnloadRequest) -> pb.RepositoryModelUnloadResponse:
        """Takes a family out of service. What it has accepted is finished; its memory is free after that.

        Raises:
            UnsupportedError: The server was not started for it.
            InvalidRequestError: The request has parameters, or names another repository.
            UnknownModelError: There is no such family.
        """
        self._check(request.repository_name, request.parameters, "unload_dependents")
        await self._reconciler.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

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
