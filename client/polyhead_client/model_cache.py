"""A cache of the metadata of a server's models."""

from typing import NoReturn

from polyhead_client.arguments import check_version
from polyhead_client.asked import Asked
from polyhead_client.calls import Deadline, Operation, call
from polyhead_client.errors import InvalidRequest, NotFound, Unavailable, Unsupported
from polyhead_client.models import ModelInfo, ServedModel, family_of
from polyhead_client.request import Forms
from polyhead_client.selection import gives, not_available
from polyhead_proto import messages as pb
from polyhead_proto.names import LOGITS, OUTPUT, POOLED


class ModelCache:
    """The models of one server. Threads may share it; at worst, two of them fetch the same metadata."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._models: dict[tuple[str, str], ModelInfo] = {}
        self._only_family: dict[str | None, str] = {}
        self.forms = Forms()

    def model(self, name: str | None, version: int | str | None, deadline: Deadline) -> Operation[ModelInfo]:
        """Return a model's metadata; without a name, that of the only family."""
        key = (name or (yield from self.family(deadline)), check_version(version))
        if (info := self._models.get(key)) is None:
            message = pb.ModelMetadataRequest(name=key[0], version=key[1])
            reply = yield from call("ModelMetadata", message, pb.ModelMetadataResponse, deadline)
            info = self._models[key] = ModelInfo.from_message(reply)
        return info

    def with_outputs(
        self, info: ModelInfo, asked: Asked, version: int | str | None, deadline: Deadline
    ) -> Operation[ModelInfo]:
        """Return the model of the same family that has the outputs; preferably the same model.

        Raises:
            InvalidRequest: None has them all.
            NotFound: One may have them, but is not served.
        """
        if any(gives(info, roles, asked) for roles in asked.alternatives):
            return info
        graphs, absent = {info.name: info}, None
        for roles in asked.alternatives:
            for name in info.models:
                try:
                    found = graphs[name] = yield from self.model(name, version, deadline)
                except NotFound as error:
                    absent = error
                else:
                    if gives(found, roles, asked):
                        return found
        raise absent or not_available(list(graphs.values()), asked)

    def of_sequences(
        self, info: ModelInfo, version: int | str | None, deadline: Deadline
    ) -> Operation[ModelInfo]:
        """Return the model of the same family that leaves out vectors of tokens, or this one if none does."""
        wanted = {POOLED, LOGITS} & info.outputs.keys()
        for name in info.models if wanted else ():
            try:
                found = yield from self.model(name, version, deadline)
            except NotFound:  # it is not served
                continue
            if OUTPUT not in found.outputs and wanted <= found.outputs.keys():
                return found
        return info

    def models(self, deadline: Deadline) -> Operation[list[ServedModel]]:
        """List the server's models; the list is not cached."""
        reply = yield from call(
            "RepositoryIndex", pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse, deadline
        )
        return [
            ServedModel(name=model.name, version=model.version, state=model.state, reason=model.reason)
            for model in reply.models
        ]

    def state(self, name: str, deadline: Deadline) -> Operation[str]:
        """Describe the state of a model's versions; empty if the server does not list its models.

        Raises:
            NotFound: The server has no such model.
        """
        try:
            listed = yield from self.models(deadline)
        except Unsupported:
            return ""
        states = [f"it is {model.state} {model.reason}".rstrip() for model in listed if model.name == name]
        if not states:
            names = ", ".join(sorted({family_of(model.name) for model in listed}))
            raise NotFound(f"{self._target} has no model {name}; it has {names or 'none'}")
        return ", ".join(states)

    def family(self, deadline: Deadline, takes: str | None = None) -> Operation[str]:
        """Return the only family that is ready; with `takes`, the only one that has this input.

        Raises:
            InvalidRequest: There are several, so one must be named.
            NotFound: There is none.
            Unavailable: None is ready yet.
        """
        for known in (None, takes):  # if there is only one family, it is the one for any input
            if known in self._only_family:
                return self._only_family[known]
        try:
            listed = yield from self.models(deadline)
        except Unsupported as error:
            raise InvalidRequest(f"model must be given: {self._target} does not list its models") from error
        ready = sorted({family_of(model.name) for model in listed if model.state == "READY"})
        if not ready:
            _raise_none_ready(self._target, listed)
        fitting = ready
        if takes is not None and len(ready) > 1:
            fitting = []
            for name in ready:
                info = yield from self.model(name, None, deadline)
                if takes in info.inputs:
                    fitting.append(name)
        if len(fitting) != 1:
            raise InvalidRequest(f"model must be one of {', '.join(fitting or ready)}, was not given")
        self._only_family[None if len(ready) == 1 else takes] = fitting[0]
        return fitting[0]

    def forget(self, name: str) -> None:
        """Drop a model and the others of its family, which may have changed, from the cache."""
        self._only_family.clear()
        self.forms.clear()
        for key in [key for key in self._models if family_of(key[0]) == family_of(name)]:
            self._models.pop(key, None)


def _raise_none_ready(target: str, listed: list[ServedModel]) -> NoReturn:
    if not listed:
        raise NotFound(f"{target} serves no models")
    states = (f"{model.name} is {model.state} {model.reason}".rstrip() for model in listed)
    raise Unavailable(f"{target} has no model that is ready: {', '.join(states)}")
