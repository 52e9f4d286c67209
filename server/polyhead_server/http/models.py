"""Which families there are, what each can do with texts, and which one a call gets.

OpenAI's `/v1/models` and TEI's `/info` say so. Shape letters: C labels.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

from fastapi import Response

from polyhead_proto import names
from polyhead_proto.outputs.sparse import SPARSE_VALUES
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.http.caller import Caller
from polyhead_server.http.errors import OPENAI, TEI
from polyhead_server.http.fields import MOST_INPUTS, Described, FamilyOptions
from polyhead_server.http.oip import ModelName
from polyhead_server.http.routes import AnyCaller, Choosing, make_router
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.registry import Model, Registry

CREATED = int(time.time())
"""When this process was started, in seconds since the epoch: when its models were made, for `/v1/models`."""

_OWNER = "polyhead"

_ON_HUB = re.compile(r"[A-Za-z0-9][\w.-]{,95}/(?P<name>[A-Za-z0-9][\w.-]{,95})(@[\w./-]{1,255})?", re.ASCII)
"""`ORG/NAME` or `ORG/NAME@REVISION` of a checkpoint on the Hugging Face hub."""

models_router = make_router(OPENAI, "RepositoryIndex")
info_router = make_router(TEI, "ModelMetadata", 400, 404, 503)

# ---- What a graph can --------------------------------------------------------------------------


def outputs_of(signature: Signature, roles: Iterable[str]) -> list[str]:
    """Return the names of a graph's outputs that have these roles, as far as there are such."""
    return [spec.name for role in roles if (spec := signature.outputs_by_role.get(role))]


def labels_of(signature: Signature) -> Sequence[str]:
    """Return the C labels of a graph; their numbers, if they have no names."""
    logits = signature.outputs_by_role[names.LOGITS]
    return logits.labels or [str(number) for number in range(logits.shape[-1])]


def tags(signature: Signature) -> bool:
    """Return whether a graph is one whose logits are those of tokens."""
    logits = signature.outputs_by_role.get(names.LOGITS)
    return logits is not None and signature.length in logits.axes


def scores_pairs(signature: Signature) -> bool:
    """Return whether a graph gives pairs of texts one score."""
    takes_pairs = {names.TEXT, names.TEXT_PAIR} <= signature.inputs.keys()
    gives_logits = names.LOGITS in signature.outputs_by_role and not tags(signature)
    return takes_pairs and gives_logits and len(labels_of(signature)) == 1


def _classifies(signature: Signature) -> bool:
    return names.TEXT in signature.inputs and names.LOGITS in signature.outputs_by_role


class Task(NamedTuple):
    """What calls ask for."""

    can: Callable[[Signature], bool]
    """Returns whether a graph is one that can do it."""
    does: str
    """What that is, for messages."""
    fast: bool = True
    """Whether only the fast graph of a family does it."""


TASKS: Mapping[str, Task] = {
    "embed": Task(
        lambda of: names.TOKENS in of.inputs_by_role and names.POOLED in of.outputs_by_role, "embed"
    ),
    "embed_sparse": Task(lambda of: SPARSE_VALUES.role in of.outputs_by_role, "weigh words", fast=False),
    "rerank": Task(lambda of: _classifies(of) and scores_pairs(of), "rerank"),
    "classify": Task(_classifies, "classify"),
    "tokenize": Task(lambda of: of.manifest.tokenizer is not None, "take text"),
}
"""By name, as `--default` has them."""


# ---- Which family ------------------------------------------------------------------------------


def served(registry: Registry, task: str) -> Sequence[Signature]:
    """Return the newest of each graph that can do something."""
    newest, does = {model.signature.name: model.signature for model in registry.models()}, TASKS[task]
    return [one for one in newest.values() if (one.graph == "fast" or not does.fast) and does.can(one)]


def families(registry: Registry) -> Mapping[str, Sequence[str]]:
    """Return what each family can do, by its name."""
    found: dict[str, list[str]] = {}
    for task in TASKS:
        for family in {signature.manifest.name: None for signature in served(registry, task)}:
            found.setdefault(family, []).append(task)
    return found


def _find(registry: Registry, name: str) -> Model:
    """Find a model by its name, or by that of its checkpoint, which clients of other servers send."""
    on_hub = _ON_HUB.fullmatch(name)
    return registry.find(name if on_hub is None else names.family_name(on_hub["name"]))


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
    model = _find(caller.registry, name)
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
        known.update(can.get(_find(caller.registry, name).signature.manifest.name, ()))
    else:
        known.update(*can.values())
    return next((task for task in TASKS if task in known), "embed")


def cheapest(registry: Registry, signature: Signature, roles: Collection[str]) -> Signature:
    """Return the graph of the same version with such outputs: without vectors of tokens, or this one."""
    family, able = (signature.manifest.name, signature.version), list[Signature]()
    for model in registry.models():
        each = model.signature
        if (each.manifest.name, each.version) == family and each.outputs_by_role.keys() >= {*roles}:
            if names.OUTPUT not in each.outputs:
                return each
            able.append(each)
    return able[0] if able and signature not in able else signature


# ---- What callers are told ------------------------------------------------------------------------


class ListedModel(Described):
    """A family."""

    id: str
    object: Literal["model"]
    created: int
    """Seconds since the epoch"""
    owned_by: str | None = None
    """Not in /models, where infinity's client knows no other owner than itself"""
    capabilities: list[str]
    """What it can do: embed, embed_sparse, rerank, classify, tokenize"""
    stats: dict[str, float]
    """How busy it is, as infinity says it: queue_fraction of the tokens that may wait, queue_absolute and
    results_pending in requests, and batch_size, the most sequences of a request"""


class ListedModels(Described):
    """The families."""

    object: Literal["list"]
    data: list[ListedModel]


class FamilyInfo(Described):
    """A family, as Text Embeddings Inference describes its model."""

    model_id: str
    model_sha: str
    model_dtype: str
    model_type: dict[str, dict[str, Any]]
    """Its kind, embedding, reranker or classifier, with its pooling or its labels"""
    max_input_length: int
    """Of a text, in tokens"""
    max_batch_tokens: int
    """Of a request"""
    max_client_batch_size: int
    """The most texts of a call"""
    auto_truncate: bool
    version: str


async def _list(caller: Caller, **own: str) -> Response:
    listed = [own | _listed(caller, name, tasks) for name, tasks in families(caller.registry).items()]
    return await caller.document({"object": "list", "data": listed})


@models_router.get("/models", response_model=ListedModels)
async def list_models_as_infinity(caller: AnyCaller) -> Response:
    """List the families that do something with texts."""
    return await _list(caller)


@models_router.get("/v1/models", response_model=ListedModels)
async def list_models(caller: AnyCaller) -> Response:
    """List the families that do something with texts."""
    return await _list(caller, owned_by=_OWNER)


@models_router.get("/v1/models/{name:path}", response_model=ListedModel, responses=OPENAI.responses(404, 503))
async def retrieve_model(name: ModelName, caller: AnyCaller) -> Response:
    """Describe a model."""
    name = _find(caller.registry, name).signature.name
    tasks = families(caller.registry).get(name, [])
    return await caller.document({"owned_by": _OWNER} | _listed(caller, name, tasks))


def _listed(caller: Caller, name: str, tasks: Sequence[str]) -> dict[str, object]:
    models = [model for model in caller.registry.models() if model.signature.manifest.name == name]
    stats = {
        "queue_fraction": sum(model.scheduler.queued_tokens for model in models)
        / (caller.service.settings.max_queued_tokens * max(1, len(models))),
        "queue_absolute": sum(model.scheduler.queued_requests for model in models),
        "results_pending": sum(model.lease.users for model in models),
        "batch_size": caller.service.settings.max_batch_size,
    }
    return {"id": name, "object": "model", "created": CREATED, "capabilities": tasks, "stats": stats}


@info_router.get("/info", response_model=FamilyInfo)
async def info(caller: Choosing) -> Response:
    """Describe a family."""
    signature = named(caller, FamilyOptions(), task := task_of(caller, None))
    manifest, settings = signature.manifest, caller.service.settings
    if task in {"rerank", "classify"}:
        labels = labels_of(signature)
        kind: dict[str, Any] = {
            "reranker" if task == "rerank" else "classifier": {
                "id2label": {str(number): label for number, label in enumerate(labels)},
                "label2id": {label: number for number, label in enumerate(labels)},
            }
        }
    else:
        pooling = "splade" if task == "embed_sparse" else manifest.encoder.pooling
        kind = {"embedding": {"pooling": pooling}}
    found = {
        "model_id": manifest.name,
        "model_sha": manifest.digest,
        "model_dtype": manifest.precision,
        "model_type": kind,
        "max_input_length": manifest.text_max_tokens or settings.max_request_tokens,
        "max_batch_tokens": settings.max_request_tokens,
        "max_client_batch_size": MOST_INPUTS,
        "auto_truncate": settings.truncate,
        "version": version("polyhead"),
    }
    return await caller.document(found)
