"""What models can do: which answer a call, and which graph of a family does so with the least work."""

from collections.abc import Callable, Collection, Sequence

from polyhead_proto.names import OUTPUT
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.registry import Registry


def served(registry: Registry, can: Callable[[Signature], bool]) -> Sequence[Signature]:
    """Return the newest of each model that can do something."""
    newest = {model.signature.name: model.signature for model in registry.models()}
    return [signature for signature in newest.values() if can(signature)]


def named(registry: Registry, name: str | None, can: Callable[[Signature], bool], what: str) -> Signature:
    """Return the model that a call names, or the only one that can do it.

    Args:
        registry: Has the models.
        name: The model; None where the call names none.
        can: Whether a model can do it.
        what: What that is, for messages.

    Raises:
        InvalidRequestError: It names none, and there is not one.
        UnknownModelError: There is no such model.
        UnavailableError: It is not ready.
    """
    if name is None:
        able = served(registry, can)
        if len(able) != 1:
            names = listed(one.name for one in able) or "none"
            raise InvalidRequestError(
                f"the request must have the field model, one of those that {what} ({names})"
            )
        name = able[0].name
    return registry.find(name).signature


def cheapest(registry: Registry, signature: Signature, roles: Sequence[str]) -> Signature:
    """Return the graph of the same family with such outputs: without vectors of tokens, or this one."""
    family = signature.manifest.name
    graphs = [each.signature for each in registry.models() if each.signature.manifest.name == family]
    able = [each for each in graphs if has(each, roles)]
    alone = next((each for each in able if OUTPUT not in each.outputs), None)
    return alone or next(iter([signature] if has(signature, roles) else able), signature)


def output_of(signature: Signature, role: str) -> str | None:
    """Return the output of a graph that has a role, if there is one."""
    return next((spec.name for spec in signature.outputs.values() if spec.role == role), None)


def has(signature: Signature, roles: Collection[str]) -> bool:
    """Return whether a graph has outputs of all these roles."""
    return all(output_of(signature, role) for role in roles)
