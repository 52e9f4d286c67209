"""What calls of other APIs do with texts: embed, label or rank them; and which models can.

Shape letters: B texts, pairs or lists of token ids, C labels, T tokens of a pair, L layers, H heads.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto import names
from polyhead_proto.datatypes import unpack_strings
from polyhead_proto.outputs.evidence import DEFAULT_PAIRS, evidence_layers, evidence_of
from polyhead_proto.outputs.scores import best_first, scores_of
from polyhead_proto.outputs.vectors import VectorPrecision
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.http.caller import Caller
from polyhead_server.http.calls import Kept, answer_list, joined, keep_arrays, message_of
from polyhead_server.http.fields import MOST_PAIRS, Evidence, TextOptions
from polyhead_server.inference.outputs import ranges_of
from polyhead_server.inference.reply import InferReply, detached
from polyhead_server.repository.signature import Signature
from polyhead_server.serving.registry import Registry

DENSE, SPARSE = (names.POOLED,), (names.SPARSE_VALUES, names.SPARSE_INDICES)
"""The roles of the outputs that calls embed with."""

_PAIR_BYTES = 192
"""Of a pair of evidence as JSON, about: 120 and the two tokens."""

_WITH_EVIDENCE = (names.LOGITS, names.ATTENTION, names.VALUE_NORMS, names.SPANS)
"""What a graph must have for evidence: the attention graph computes scores and attention in one run."""


# ---- Which models can ----------------------------------------------------------------------------


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
            known = listed(one.name for one in able) or "none"
            raise InvalidRequestError(
                f"the request must have the field model, one of those that {what} ({known})"
            )
        name = able[0].name
    return registry.find(name).signature


def cheapest(registry: Registry, signature: Signature, roles: Sequence[str]) -> Signature:
    """Return the graph of the same family with such outputs: without vectors of tokens, or this one."""
    family = signature.manifest.name
    graphs = [each.signature for each in registry.models() if each.signature.manifest.name == family]
    able = [each for each in graphs if has(each, roles)]
    alone = next((each for each in able if names.OUTPUT not in each.outputs), None)
    return alone or next(iter([signature] if has(signature, roles) else able), signature)


def output_of(signature: Signature, role: str) -> str | None:
    """Return the output of a graph that has a role, if there is one."""
    return next((spec.name for spec in signature.outputs.values() if spec.role == role), None)


def has(signature: Signature, roles: Collection[str]) -> bool:
    """Return whether a graph has outputs of all these roles."""
    return all(output_of(signature, role) for role in roles)


# ---- Vectors -------------------------------------------------------------------------------------


class EmbeddingOptions(TextOptions):
    """What every call that embeds may say."""

    prompt_name: str | None = None
    """The prompt to put before each text"""


def embeds(signature: Signature) -> bool:
    """Return whether a graph is one that embeds: the fast one of a family that pools tokens."""
    return signature.graph == "fast" and signature.feed(names.TOKENS) is not None and has(signature, DENSE)


async def embed(
    caller: Caller,
    field: str,
    inputs: Sequence[Any],
    options: EmbeddingOptions,
    *,
    roles: Sequence[str] = DENSE,
    dimensions: int | None = None,
    precision: VectorPrecision | None = None,
) -> tuple[str, list[NDArray[Any]], int]:
    """Embed texts, or lists of token ids.

    Args:
        caller: Asks for it.
        field: What the caller calls the inputs.
        inputs: B texts, or B lists of token ids.
        options: What else the caller says.
        roles: Of the outputs to return.
        dimensions: How many of the first dimensions to return.
        precision: Of integers to return; None: numbers.

    Returns:
        The family, outputs (B, …), and the number of tokens.

    Raises:
        RequestError: The caller gets the reason.
        EngineError: The engine failed.
    """
    can, does = (embeds, "embed") if roles == DENSE else (partial(has, roles=SPARSE), "weigh words")
    model = named(caller.registry, options.model, can, does)
    signature = cheapest(caller.registry, model, roles)
    outputs = [output_of(signature, role) for role in roles]
    if outputs[0] is None or signature.feed(names.TOKENS) is None:
        gives = "pools tokens" if roles == DENSE else "weighs words (polyhead export --graphs sparse)"
        raise InvalidRequestError(
            f"model must be an encoder that {gives}, {signature.name} gives {listed(signature.outputs)}"
        )
    width = signature.outputs[outputs[0]].shape[-1]
    if dimensions is not None and dimensions > width:
        raise InvalidRequestError(
            f"dimensions must be from 1 to {width}, the width of {signature.name}'s vectors, was {dimensions}"
        )
    if precision is not None:
        ranges_of(signature.outputs[outputs[0]], precision, dimensions or width, "output_dtype")
    if isinstance(inputs[0], str) and names.TEXT not in signature.inputs:
        raise InvalidRequestError(f"{field} must be token ids: {signature.name} has no tokenizer")
    parameters = caller.given({names.TRUNCATE: options.truncate, names.PROMPT_NAME: options.prompt_name})
    message = message_of(signature, outputs, parameters)
    if dimensions is not None:
        message.outputs[0].parameters[names.DIMENSIONS].int64_param = dimensions
    if precision is not None:
        message.outputs[0].parameters[names.PRECISION].string_param = precision
    called = dict.fromkeys((names.TEXT, names.INPUT_IDS), f"{field}[]")
    arrays, tokens = joined(await answer_list(caller, signature, message, inputs, called))
    return model.name, arrays, tokens


# ---- Labels --------------------------------------------------------------------------------------


class RankingOptions(TextOptions):
    """What every call that ranks texts may say."""

    query: str
    """What the texts may answer"""
    return_evidence: Evidence = None
    """Whether to return the pairs of tokens that attend to each other most (8), or how many: 16384 in all"""


def classifies(signature: Signature) -> bool:
    """Return whether a graph is one that classifies texts, or their tokens."""
    return signature.graph == "fast" and names.TEXT in signature.inputs and has(signature, (names.LOGITS,))


def tags(signature: Signature) -> bool:
    """Return whether a graph is one whose logits are those of tokens."""
    logits = output_of(signature, names.LOGITS)
    return logits is not None and signature.length in signature.outputs[logits].axes


def labels_of(signature: Signature) -> Sequence[str]:
    """Return the C labels of a graph; their numbers, if they have no names."""
    logits = signature.outputs[output_of(signature, names.LOGITS) or ""]
    return logits.labels or [str(number) for number in range(logits.shape[-1])]


def reranks(signature: Signature) -> bool:
    """Return whether a graph is one that gives pairs of texts one score."""
    return classifies(signature) and _gives_scores(signature)


def _gives_scores(signature: Signature) -> bool:
    takes_pairs = {names.TEXT, names.TEXT_PAIR} <= signature.inputs.keys()
    gives_logits = has(signature, (names.LOGITS,)) and not tags(signature)
    return takes_pairs and gives_logits and len(labels_of(signature)) == 1


# ---- Ranks -------------------------------------------------------------------------------------


async def rank(
    caller: Caller,
    field: str,
    texts: Sequence[str],
    options: RankingOptions,
    score: str,
    *,
    raw_scores: bool = False,
) -> tuple[list[dict[str, Any]], int]:
    """Rank texts by what they have to do with a query.

    Args:
        caller: Asks for it.
        field: What the caller calls the texts.
        texts: B texts.
        options: The query, and what else the caller says.
        score: What the reply calls a score.
        raw_scores: Whether scores are logits; otherwise they are the sigmoid of these, as TEI's.

    Returns:
        What the reply says of all texts, the best first, of equal ones the earlier; and the number of tokens.

    Raises:
        RequestError: The caller gets the reason.
        EngineError: The engine failed.
    """
    count = _pairs_of_evidence(options.return_evidence, len(texts))
    roles = _WITH_EVIDENCE if count else (names.LOGITS,)
    model = named(caller.registry, options.model, reranks, "rerank")
    signature = cheapest(caller.registry, model, roles)
    if not _gives_scores(signature):
        raise InvalidRequestError(
            f"model must be a reranker, which takes pairs of texts and gives one score, {signature.name} "
            f"takes {listed(signature.inputs)} and gives {listed(signature.outputs)}"
        )
    if not has(signature, roles):
        raise InvalidRequestError(
            f"return_evidence needs a graph with attention, {signature.manifest.name} has none: "
            "repeat its export with --if-exists add"
        )
    outputs = _outputs_of_evidence(signature) if count else [output_of(signature, names.LOGITS)]
    chunks = await answer_list(
        caller,
        signature,
        message_of(signature, outputs, caller.given({names.TRUNCATE: options.truncate})),
        [(options.query, text) for text in texts],
        {names.TEXT: "query", names.TEXT_PAIR: f"{field}[]"},
        keep=partial(_keep_evidence, count) if count else keep_arrays,
        written_bytes=_PAIR_BYTES * count,
    )
    (logits, *written), tokens = joined(chunks)
    scores = scores_of(logits, "identity" if raw_scores else "sigmoid")[:, 0]
    ranked = []
    for at in best_first(logits[:, 0]).tolist():
        evidence = {"evidence": orjson.Fragment(written[0][at].item())} if written else {}
        ranked.append({"index": at, score: float(scores[at]), **evidence})
    return ranked, tokens


def _pairs_of_evidence(asked: bool | int | None, texts: int) -> int:
    """Return how many pairs of tokens each text is to have as evidence; 0: none."""
    if not isinstance(asked, int) or isinstance(asked, bool):
        return DEFAULT_PAIRS if asked else 0
    most = max(DEFAULT_PAIRS, MOST_PAIRS // texts)
    if asked > most:
        raise InvalidRequestError(
            f"return_evidence must be true, false or from 1 to {most} pairs for each of {texts} texts, "
            f"was {asked}"
        )
    return asked


# ---- Evidence ----------------------------------------------------------------------------------


def _outputs_of_evidence(signature: Signature) -> list[str | None]:
    """Return the names of the outputs that evidence is made of."""
    by_layer = {
        spec.layer or 0: spec.name for spec in signature.outputs.values() if spec.role == names.ATTENTION
    }
    others = (output_of(signature, role) for role in (names.LOGITS, names.VALUE_NORMS, names.SPANS))
    return [*others, names.TOKENS, *(by_layer[layer] for layer in evidence_layers(by_layer))]


def _keep_evidence(count: int, reply: InferReply) -> Kept:
    """Return the logits of a chunk, and its evidence as JSON; attention is gone with the reply.

    Each text has evidence, as its rank is known only at the end.
    """
    contents: Mapping[str, Any] = {
        layout.spec.name: content for layout, content in zip(reply.outputs, reply.contents, strict=True)
    }
    specs = {layout.spec.role: layout.spec for layout in reply.outputs}
    of_layers, norms = specs[names.VALUE_NORMS].layers or (), contents[specs[names.VALUE_NORMS].name]
    layers = [
        (weights, norms[:, of_layers.index(spec.layer or 0), list(spec.heads or range(weights.shape[1]))])
        for spec, weights in ((layout.spec, contents[layout.spec.name]) for layout in reply.outputs)
        if spec.role == names.ATTENTION
    ]
    logits, lengths, spans = (
        contents[name] for name in (specs[names.LOGITS].name, names.LENGTHS, names.SPANS)
    )
    texts = unpack_strings(names.TOKENS, spans.shape[:2], contents[names.TOKENS])
    tokens = np.array(texts, object).reshape(spans.shape[:2])
    written = []
    for row, length in enumerate(lengths.tolist()):
        gathered = (
            _gathered(weights[row, :, :length, :length], values[row, :, :length])
            for weights, values in layers
        )
        its = [token.decode() for token in tokens[row, :length]]
        written.append(orjson.dumps(evidence_of(gathered, spans[row, :length], its, count)))
    return [np.asarray(each) for each in (detached(logits), written, detached(lengths))]


def _gathered(weights: NDArray[Any], norms: NDArray[Any]) -> NDArray[np.float32]:
    """Return the sum over heads of weights [H, T, T], weighted by the norms [H, T] of values: [T, T]."""
    return np.asarray(np.einsum("hqk,hk->qk", weights, norms, dtype=np.float32))
