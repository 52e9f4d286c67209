"""Logits of texts, pairs and tokens: the labels of classifiers, and ranks with their evidence.

What TEI's and Cohere's calls have in common. Shape letters: B texts or pairs, C labels, T tokens of a pair,
L layers, H heads.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto.datatypes import unpack_strings
from polyhead_proto.names import (
    ATTENTION,
    LENGTHS,
    LOGITS,
    SPANS,
    TEXT,
    TEXT_PAIR,
    TOKENS,
    TRUNCATE,
    VALUE_NORMS,
)
from polyhead_proto.outputs.evidence import DEFAULT_PAIRS, evidence_layers, evidence_of
from polyhead_proto.outputs.probabilities import probabilities
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.http.caller import Caller
from polyhead_server.http.calls import Kept, answer_list, joined, keep_arrays, message_of
from polyhead_server.http.families import cheapest, has, named, output_of
from polyhead_server.http.fields import MOST_PAIRS, Body, Evidence
from polyhead_server.inference.reply import InferReply, detached
from polyhead_server.repository.signature import Signature

_PAIR_BYTES = 192
"""Of a pair of evidence as JSON, about: 120 and the two tokens."""

_WITH_EVIDENCE = (LOGITS, ATTENTION, VALUE_NORMS, SPANS)
"""What a graph must have for evidence: the attention graph computes scores and attention in one run."""


class RankingOptions(Body):
    """What every call that ranks texts may say."""

    query: str
    """What the texts may answer"""
    model: str | None = None
    """The family; without, the only one that can do it"""
    return_evidence: Evidence = None
    """Whether to return the pairs of tokens that attend to each other most (8), or how many: 16384 in all"""
    truncate: bool | None = None
    """Whether to cut texts that are too long; without, they are rejected"""


def classifies(signature: Signature) -> bool:
    """Return whether a graph is one that classifies texts, or their tokens."""
    return signature.graph == "fast" and TEXT in signature.inputs and output_of(signature, LOGITS) is not None


def tags(signature: Signature) -> bool:
    """Return whether a graph is one whose logits are those of tokens."""
    logits = output_of(signature, LOGITS)
    return logits is not None and signature.length in signature.outputs[logits].axes


def labels_of(signature: Signature) -> Sequence[str]:
    """Return the C labels of a graph; their numbers, if they have no names."""
    logits = signature.outputs[output_of(signature, LOGITS) or ""]
    return logits.labels or [str(number) for number in range(logits.shape[-1])]


def reranks(signature: Signature) -> bool:
    """Return whether a graph is one that gives pairs of texts one score."""
    return classifies(signature) and _gives_scores(signature)


def _gives_scores(signature: Signature) -> bool:
    takes_pairs = {TEXT, TEXT_PAIR} <= signature.inputs.keys() and output_of(signature, LOGITS) is not None
    return takes_pairs and not tags(signature) and len(labels_of(signature)) == 1


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
        raw_scores: Whether scores are logits.

    Returns:
        What the reply says of all texts, the best first, of equal ones the earlier; and the number of tokens.

    Raises:
        RequestError: The caller gets the reason.
        EngineError: The engine failed.
    """
    count = _pairs_of_evidence(options.return_evidence, len(texts))
    roles = _WITH_EVIDENCE if count else (LOGITS,)
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
    outputs = _outputs_of_evidence(signature) if count else [output_of(signature, LOGITS)]
    chunks = await answer_list(
        caller,
        signature,
        message_of(signature, outputs, caller.given({TRUNCATE: options.truncate})),
        [(options.query, text) for text in texts],
        {TEXT: "query", TEXT_PAIR: f"{field}[]"},
        keep=partial(_keep_evidence, count) if count else keep_arrays,
        written_bytes=_PAIR_BYTES * count,
    )
    (logits, *written), tokens = joined(chunks)
    scores = (logits if raw_scores else probabilities(logits))[:, 0]
    ranked = []
    for at in np.argsort(-scores, kind="stable").tolist():
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
    by_layer = {spec.layer or 0: spec.name for spec in signature.outputs.values() if spec.role == ATTENTION}
    others = (output_of(signature, role) for role in (LOGITS, VALUE_NORMS, SPANS))
    return [*others, TOKENS, *(by_layer[layer] for layer in evidence_layers(by_layer))]


def _keep_evidence(count: int, reply: InferReply) -> Kept:
    """Return the logits of a chunk, and its evidence as JSON; attention is gone with the reply.

    Each text has evidence, as its rank is known only at the end.
    """
    contents: Mapping[str, Any] = {
        layout.spec.name: content for layout, content in zip(reply.outputs, reply.contents, strict=True)
    }
    specs = {layout.spec.role: layout.spec for layout in reply.outputs}
    of_layers, norms = specs[VALUE_NORMS].layers or (), contents[specs[VALUE_NORMS].name]
    layers = [
        (weights, norms[:, of_layers.index(spec.layer or 0), list(spec.heads or range(weights.shape[1]))])
        for spec, weights in ((layout.spec, contents[layout.spec.name]) for layout in reply.outputs)
        if spec.role == ATTENTION
    ]
    logits, lengths, spans = (contents[name] for name in (specs[LOGITS].name, LENGTHS, SPANS))
    texts = unpack_strings(TOKENS, spans.shape[:2], contents[TOKENS])
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
