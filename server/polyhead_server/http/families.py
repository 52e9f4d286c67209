"""What models can do: which answer a call, and which graph of a family does so with the least work."""

from collections.abc import Callable, Collection, Sequence

from polyhead_proto.names import OUTPUT
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.registry import Registry


class Families:
    """What models can do, found again when models have changed.

    Args:
        registry: Has them.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._changes = -1
        self._served: dict[Callable[[Signature], bool], Sequence[Signature]] = {}
        self._cheapest: dict[tuple[str, Collection[str]], Signature] = {}

    def served(self, can: Callable[[Signature], bool]) -> Sequence[Signature]:
        """Return the newest of each model that can do something."""
        self._forget_what_has_changed()
        if can not in self._served:
            newest = {model.signature.name: model.signature for model in self._registry.models()}
            self._served[can] = [signature for signature in newest.values() if can(signature)]
        return self._served[can]

    def named(self, name: str | None, can: Callable[[Signature], bool], what: str) -> Signature:
        """Return the model that a call names, or the only one that can do it.

        Args:
            name: The model; None where the call names none.
            can: Whether a model can do it.
            what: What that is, for messages.

        Raises:
            InvalidRequestError: It names none, and there is not one.
            UnknownModelError: There is no such model.
            UnavailableError: It is not ready.
        """
        if name is not None:
            return self._registry.find(name).signature
        served = self.served(can)
        if len(served) != 1:
            names = listed(one.name for one in served) or "none"
            raise InvalidRequestError(
                f"the request must have the field model, one of those that {what} ({names})"
            )
        return self._registry.find(served[0].name).signature

    def cheapest(self, signature: Signature, roles: Sequence[str]) -> Signature:
        """Return the graph of the same family with such outputs: without vectors of tokens, or this one."""
        self._forget_what_has_changed()
        key = (signature.name, tuple(roles))
        if key not in self._cheapest:
            graphs = (model.signature for model in self._registry.models())
            family = (each for each in graphs if each.manifest.name == signature.manifest.name)
            able = [each for each in family if has(each, roles)]
            alone = (each for each in able if OUTPUT not in each.outputs)
            others = [signature] if has(signature, roles) else able
            self._cheapest[key] = next(alone, next(iter(others), signature))
        return self._cheapest[key]

    def _forget_what_has_changed(self) -> None:
        if self._changes != self._registry.changes:
            self._changes = self._registry.changes
            self._served.clear()
            self._cheapest.clear()


def output_of(signature: Signature, role: str) -> str | None:
    """Return the output of a graph that has a role, if there is one."""
    return next((spec.name for spec in signature.outputs.values() if spec.role == role), None)


def has(signature: Signature, roles: Collection[str]) -> bool:
    """Return whether a graph has outputs of all these roles."""
    return all(output_of(signature, role) for role in roles)
