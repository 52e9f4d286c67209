"""The operations that ask a server about itself and its models; see `polyhead_client.operations`."""

from types import EllipsisType
from typing import TypeAlias

from polyhead_client.arguments import check_name, check_timeout
from polyhead_client.calls import Deadline, Operation, Sleep, call
from polyhead_client.errors import DeadlineExceeded, NotFound, Unavailable
from polyhead_client.model_cache import ModelCache
from polyhead_client.models import ModelInfo, ModelStatistics, ServedModel, ServerInfo
from polyhead_proto import messages as pb

Timeout: TypeAlias = float | EllipsisType | None
"""Seconds; None means no limit, ... the client's default."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5


class ServerOperations:
    """The operations of one client that encode nothing."""

    def __init__(self, target: str, timeout: float | None) -> None:
        """Prepare the operations.

        Args:
            target: The server's address, for messages.
            timeout: The default timeout of an operation in seconds; None means no limit.
        """
        self._target = target
        self._timeout = check_timeout(timeout)
        self._models = ModelCache(target)

    def model(
        self,
        name: str | None = None,
        *,
        version: int | str | None = None,
        takes: str | None = None,
        timeout: Timeout = ...,
    ) -> Operation[ModelInfo]:
        """Return a model's metadata, which is fetched once and then cached.

        Args:
            name: A family such as `minilm`, or one of its graphs such as `minilm.attention`; None means
                the only family that is served.
            version: The version; None means the newest.
            takes: An input, such as `text`: without a name, the only family that has it.
            timeout: Seconds; None means no limit, ... the client's default.

        Raises:
            NotFound: There is no such model.
        """
        deadline = self._deadline(timeout)
        found = check_name(name) or (yield from self._models.family(deadline, takes))
        return (yield from self._models.model(found, version, deadline))

    def models(self, *, timeout: Timeout = ...) -> Operation[list[ServedModel]]:
        """List the server's models, in all versions, with their states."""
        return (yield from self._models.models(self._deadline(timeout)))

    def metadata(self, *, timeout: Timeout = ...) -> Operation[ServerInfo]:
        """Return the server's name, version and protocol extensions."""
        deadline = self._deadline(timeout)
        reply = yield from call(
            "ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse, deadline
        )
        return ServerInfo(name=reply.name, version=reply.version, extensions=tuple(reply.extensions))

    def statistics(
        self, model: str | None = None, *, timeout: Timeout = ...
    ) -> Operation[list[ModelStatistics]]:
        """Return the statistics of one model, or of every model, since the server started.

        Raises:
            NotFound: There is no such model.
        """
        message = pb.ModelStatisticsRequest(name=check_name(model) or "")
        reply = yield from call(
            "ModelStatistics", message, pb.ModelStatisticsResponse, self._deadline(timeout)
        )
        return [ModelStatistics.from_message(entry) for entry in reply.model_stats]

    def live(self, *, timeout: Timeout = ...) -> Operation[bool]:
        """Return whether the server is live; False also if it cannot be reached."""
        deadline = self._deadline(timeout)
        try:
            return (
                yield from call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse, deadline)
            ).live
        except (Unavailable, DeadlineExceeded):
            return False

    def ready(self, model: str | None = None, *, timeout: Timeout = ...) -> Operation[bool]:
        """Return whether the server, or one of its models, is ready for requests.

        The result is False also if the server cannot be reached, or has no such model.
        """
        deadline = self._deadline(timeout)
        try:
            return (yield from self._ready(model, deadline))
        except (Unavailable, DeadlineExceeded, NotFound):
            return False

    def wait_until_ready(self, model: str | None = None, *, timeout: Timeout = ...) -> Operation[None]:
        """Wait until the server, or one of its models, is ready for requests.

        Raises:
            DeadlineExceeded: It was not ready in time.
            NotFound: There is no such model.
        """
        deadline = self._deadline(timeout)
        pause = _FIRST_PAUSE_S
        reason = "it is loading, or draining"
        while True:
            try:
                if (yield from self._ready(model, deadline)):
                    return
                if model is not None:
                    reason = (yield from self._models.state(model, deadline)) or reason
            except Unavailable as error:
                reason = str(error)
            except DeadlineExceeded as error:
                name = self._target if model is None else f"{model} at {self._target}"
                raise DeadlineExceeded(
                    f"{name} was not ready within {deadline.timeout} s: {reason}",
                    code=error.code,
                    details=error.details,
                    request_id=error.request_id,
                ) from error
            yield Sleep(seconds=deadline.clip(pause))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _deadline(self, timeout: Timeout) -> Deadline:
        return Deadline.after(self._timeout if isinstance(timeout, EllipsisType) else timeout)

    def _ready(self, model: str | None, deadline: Deadline) -> Operation[bool]:
        if check_name(model) is None:
            return (
                yield from call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse, deadline)
            ).ready
        message = pb.ModelReadyRequest(name=model)
        return (yield from call("ModelReady", message, pb.ModelReadyResponse, deadline)).ready
