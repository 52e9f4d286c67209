"""Which families there are, and what each can do: OpenAI's `/v1/models`, TEI's `/info`."""

import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Literal

import orjson
from fastapi import Response

from polyhead_server.http.caller import Caller
from polyhead_server.http.dialects import FamilyOptions
from polyhead_server.http.errors import OPENAI, TEI
from polyhead_server.http.fields import MOST_INPUTS, Described
from polyhead_server.http.oip import ModelName
from polyhead_server.http.routes import AnyCaller, Choosing, make_router
from polyhead_server.http.tasks import families, labels_of, named, task_of

CREATED = int(time.time())
"""When this process was started, in seconds since the epoch: when its models were made, for `/v1/models`."""

_OWNER = "polyhead"

models_router = make_router(OPENAI, "RepositoryIndex")
info_router = make_router(TEI, "ModelMetadata", 400, 404, 503)


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
    return await caller.json([orjson.dumps({"object": "list", "data": listed})])


@models_router.get("/models", response_model=ListedModels)
async def list_models_as_infinity(caller: AnyCaller) -> Response:
    """List the families that do something with texts."""
    return await _list(caller)


@models_router.get("/v1/models", response_model=ListedModels)
async def list_models(caller: AnyCaller) -> Response:
    """List the families that do something with texts."""
    return await _list(caller, owned_by=_OWNER)


@models_router.get("/v1/models/{name}", response_model=ListedModel, responses=OPENAI.responses(404, 503))
async def retrieve_model(name: ModelName, caller: AnyCaller) -> Response:
    """Describe a model."""
    name = caller.registry.find(name).signature.name
    tasks = families(caller.registry).get(name, [])
    return await caller.json([orjson.dumps({"owned_by": _OWNER} | _listed(caller, name, tasks))])


def _listed(caller: Caller, name: str, tasks: Sequence[str]) -> dict[str, object]:
    models = [model for model in caller.registry.models() if model.signature.manifest.name == name]
    stats = {
        "queue_fraction": sum(model.scheduler.queued_tokens for model in models)
        / (caller.service.settings.max_queued_tokens * max(1, len(models))),
        "queue_absolute": sum(model.scheduler.queued_requests for model in models),
        "results_pending": sum(model.lease.users for model in models),
        "batch_size": caller.service.settings.max_batch_size,
    }
    own = {"id": name, "object": "model", "created": CREATED}
    return {**own, "capabilities": tasks, "stats": stats}


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
    return await caller.json([orjson.dumps(found)])
