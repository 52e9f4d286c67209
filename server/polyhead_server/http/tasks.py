"""What families can do with texts, and which family a call gets.

Shape letters: C labels.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from polyhead_proto import names
from polyhead_proto.outputs.sparse import SPARSE_VALUES
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.http.caller import Caller
from polyhead_server.http.dialects import FamilyOptions
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.registry import Registry

# ---- What a graph can --------------------------------------------------------------------------


def output_of(signature: Signature, role: str) -> str | None:
    """Return the output of a graph that has a role, if there is one."""
    return next((spec.name for spec in signature.outputs.values() if spec.role == role), None)


def has(signature: Signature, roles: Collection[str]) -> bool:
    """Return whether a graph has outputs of all these roles."""
    return all(output_of(signature, role) for role in roles)


def labels_of(signature: Signature) -> Sequence[str]:
    """Return the C labels of a graph; their numbers, if they have no names."""
    logits = signature.outputs[output_of(signature, names.LOGITS) or ""]
    return logits.labels or [str(number) for number in range(logits.shape[-1])]


def tags(signature: Signature) -> bool:
    """Return whether a graph is one whose logits are those of tokens."""
    logits = output_of(signature, names.LOGITS)
    return logits is not None and signature.length in signature.outputs[logits].axes


def scores_pairs(signature: Signature) -> bool:
    """Return whether a graph gives pairs of texts one score."""
    takes_pairs = {names.TEXT, names.TEXT_PAIR} <= signature.inputs.keys()
    gives_logits = has(signature, (names.LOGITS,)) and not tags(signature)
    return takes_pairs and gives_logits and len(labels_of(signature)) == 1


def _embeds(signature: Signature) -> bool:
    is_pooled = signature.feed(names.TOKENS) is not None and has(signature, (names.POOLED,))
    return signature.graph == "fast" and is_pooled


def _weighs_words(signature: Signature) -> bool:
    return has(signature, (SPARSE_VALUES.role,))


def _classifies(signature: Signature) -> bool:
    return signature.graph == "fast" and names.TEXT in signature.inputs and has(signature, (names.LOGITS,))


def _reranks(signature: Signature) -> bool:
    return _classifies(signature) and scores_pairs(signature)


def _reads_text(signature: Signature) -> bool:
    return signature.graph == "fast" and signature.manifest.tokenizer is not None


class Task(NamedTuple):
    """What calls ask for."""

    can: Callable[[Signature], bool]
    """Returns whether a graph is one that can do it."""
    does: str
    """What that is, for messages."""


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "embed": Task(_embeds, "embed"),
        "embed_sparse": Task(_weighs_words, "weigh words"),
        "rerank": Task(_reranks, "rerank"),
        "classify": Task(_classifies, "classify"),
        "tokenize": Task(_reads_text, "take text"),
    }
)
"""By name, as `--default` has them."""


# ---- Which family ------------------------------------------------------------------------------


def served(registry: Registry, task: str) -> Sequence[Signature]:
    """Return the newest of each graph that can do something."""
    newest = {model.signature.name: model.signature for model in registry.models()}
    return [signature for signature in newest.values() if TASKS[task].can(signature)]


def families(registry: Registry) -> Mapping[str, Sequence[str]]:
    """Return what each family can do, by its name."""
    found: dict[str, list[str]] = {}
    for task in TASKS:
        for family in {signature.manifest.name: None for signature in served(registry, task)}:
            found.setdefault(family, []).append(task)
    return found


def named(caller: Caller, options: FamilyOptions, task: str) -> Signature:
    """Return the graph that a call names, or its task's default, or the only one that can do it.

    Args:
        caller: May name it outside of the body.
        options: May name it. What they say in vain is noted for the reply.
        task: What is asked for.

    Raises:
        InvalidRequestError: There is no name, and not one that can.
        UnknownModelError: There is no such model.
        UnavailableError: It is not ready.
    """
    caller.ignored += options.ignored
    name = options.model or caller.model or caller.service.settings.defaults.get(task)
    if not name:
        able = [signature.name for signature in served(caller.registry, task)]
        if len(able) != 1:
            raise InvalidRequestError(
                f"the request must have the field model, one of those that {TASKS[task].does} "
                f"({listed(able) or 'none'}): or give it as ?model=, or the server --default {task}=FAMILY"
            )
        (name,) = able
    model = caller.registry.find(name)
    cuts_left = model.tokeniser is not None and model.tokeniser.side == "left"
    if cuts_left and getattr(options, "truncation_direction", None) is not None:
        raise InvalidRequestError(
            "truncation_direction must be left out, and truncate must not be 'END': "
            f"{model.signature.name} cuts texts on the left"
        )
    return model.signature


def task_of(caller: Caller, name: str | None) -> str:
    """Return what a call asks for that does not say it: the first task of its family, or of all.

    Raises:
        UnknownModelError: There is no such model.
        UnavailableError: It is not ready.
    """
    can, known = families(caller.registry), set[str]()
    if name := name or caller.model:
        known.update(can.get(caller.registry.find(name).signature.manifest.name, ()))
    else:
        known.update(*can.values())
    return next((task for task in TASKS if task in known), "embed")


def cheapest(registry: Registry, signature: Signature, roles: Sequence[str]) -> Signature:
    """Return the graph of the same family with such outputs: without vectors of tokens, or this one."""
    family = signature.manifest.name
    graphs = [each.signature for each in registry.models() if each.signature.manifest.name == family]
    able = [each for each in graphs if has(each, roles)]
    alone = next((each for each in able if names.OUTPUT not in each.outputs), None)
    return alone or next(iter([signature] if has(signature, roles) else able), signature)
