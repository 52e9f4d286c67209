"""What calls of other APIs do with texts: embed, rank or label them, or label their tokens.

Shape letters: B texts, pairs or lists of token ids, C labels, T tokens, L layers, H heads.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from polyhead_proto import names
from polyhead_proto.datatypes import unpack_strings
from polyhead_proto.outputs.evidence import DEFAULT_PAIRS, evidence_layers, evidence_of
from polyhead_proto.outputs.logits import best_first, scores_of
from polyhead_proto.outputs.pooled import VectorPrecision, normalised
from polyhead_proto.outputs.sparse import SPARSE_INDICES, SPARSE_VALUES
from polyhead_proto.outputs.tagging import IGNORED_LABELS, tags_of
from polyhead_proto.outputs.value_norms import VALUE_NORMS
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.http import fields
from polyhead_server.http.caller import Caller
from polyhead_server.http.calls import Kept, TextCall, answer_list, joined, keep_arrays
from polyhead_server.http.models import cheapest, labels_of, named, outputs_of, scores_pairs
from polyhead_server.inference.outputs import ranges_of
from polyhead_server.inference.reply import InferReply, detached
from polyhead_server.repository.signature import Signature

DENSE, SPARSE = (names.POOLED,), (SPARSE_VALUES.role, SPARSE_INDICES.role)
"""The roles of the outputs that calls embed with."""

_PAIR_BYTES = 192
"""Of a pair of evidence as JSON, about: 120 and the two tokens."""

_WITH_EVIDENCE = (names.LOGITS, names.ATTENTION, VALUE_NORMS.role, names.SPANS)
"""What a graph must have for evidence: the attention graph computes scores and attention in one run."""


# ---- Vectors -------------------------------------------------------------------------------------


async def embed(
    call: TextCall[fields.EmbeddingOptions],
    *,
    roles: Sequence[str] = DENSE,
    precision: VectorPrecision | None = None,
) -> tuple[str, list[NDArray[Any]], int]:
    """Embed texts, or lists of token ids.

    Args:
        call: Has B texts, or B lists of token ids.
        roles: Of the outputs to return.
        precision: Of integers to return; None: numbers.

    Returns:
        The family, outputs (B, …), and the number of tokens.

    Raises:
        RequestError: The caller gets the reason.
        EngineError: The engine failed.
    """
    caller, options = call.caller, call.options
    wanted = options if isinstance(options, fields.VectorOptions) else fields.VectorOptions()
    dimensions = wanted.dimensions
    model = named(caller, options, "embed" if roles == DENSE else "embed_sparse")
    signature = cheapest(caller.registry, model, roles)
    outputs = outputs_of(signature, roles)
    if len(outputs) < len(roles) or names.TOKENS not in signature.inputs_by_role:
        gives = "pools tokens" if roles == DENSE else "weighs words (polyhead export --graphs sparse)"
        raise InvalidRequestError(
            f"model must be an encoder that {gives}, {signature.name} gives {listed(signature.outputs)}"
        )
    first = signature.outputs[outputs[0]]
    width = first.shape[-1]
    if dimensions is not None and dimensions > width:
        raise InvalidRequestError(
            f"dimensions must be from 1 to {width}, the width of {signature.name}'s vectors, was {dimensions}"
        )
    if precision is not None:
        measured = signature.manifest.ranges_of_vectors
        ranges_of(measured, precision, dimensions or width, "output_dtype")
        if wanted.normalize and not first.unit:
            raise InvalidRequestError("normalize must be left out with output_dtype")
    if isinstance(call.inputs[0], str) and names.TEXT not in signature.inputs:
        field = call.field.removesuffix("[]")
        raise InvalidRequestError(f"{field} must be token ids: {signature.name} has no tokenizer")
    prompt = _prompt_of(caller, options, signature)
    of_first = {names.DIMENSIONS: dimensions, names.PRECISION: precision}
    answers = await answer_list(call, signature, outputs, prompt=prompt, of_first=of_first)
    arrays, tokens = joined(answers)
    if wanted.normalize and precision is None:
        arrays[0] = normalised(arrays[0])
    return model.name, arrays, tokens


def _prompt_of(caller: Caller, options: fields.EmbeddingOptions, signature: Signature) -> str | None:
    """Return the name of the prompt of a call, if there is one."""
    for field in ("input_type", "task"):
        kind: str | None = getattr(options, field)
        if kind is None:
            continue
        if options.prompt_name is not None:
            raise InvalidRequestError(f"{field} must be left out beside prompt_name, which says the same")
        known = () if signature.manifest.tokenizer is None else signature.manifest.tokenizer.prompts
        meant: Sequence[str] = (kind, *fields.PROMPTS.get(kind, ()))
        if found := next((name for name in meant if name in known), None):
            return found
        caller.ignored.append(field)
    return options.prompt_name


# ---- Ranks -------------------------------------------------------------------------------------


async def rank(call: TextCall[fields.RankingOptions], score: str) -> tuple[str, list[dict[str, Any]], int]:
    """Rank texts by what they have to do with a query.

    Args:
        call: Has B texts, and the query.
        score: What the reply calls a score.

    Returns:
        The family; what the reply says of texts, the best first, of equal ones the earlier; and the number
        of tokens.

    Raises:
        RequestError: The caller gets the reason.
        EngineError: The engine failed.
    """
    caller, options, texts = call.caller, call.options, call.inputs
    count = _pairs_of_evidence(options.return_evidence, len(texts))
    roles = _WITH_EVIDENCE if count else (names.LOGITS,)
    model = named(caller, options, "rerank")
    signature = cheapest(caller.registry, model, roles)
    if not scores_pairs(signature):
        raise InvalidRequestError(
            f"model must be a reranker, which takes pairs of texts and gives one score, {signature.name} "
            f"takes {listed(signature.inputs)} and gives {listed(signature.outputs)}"
        )
    if len(outputs_of(signature, roles)) < len(roles):
        raise InvalidRequestError(
            f"return_evidence needs a graph with attention, {signature.manifest.name} has none: "
            "repeat its export with --if-exists add"
        )
    most = signature.manifest.text_max_tokens or caller.service.settings.max_request_tokens
    if options.max_tokens_per_doc is not None:
        longest = max(len(text.encode()) for text in texts)  # a token has a byte at least
        if options.max_tokens_per_doc < min(most, longest):
            raise InvalidRequestError(
                f"max_tokens_per_doc must be left out, or at least the {most} tokens that {signature.name} "
                f"takes, was {options.max_tokens_per_doc}"
            )
        caller.ignored.append("max_tokens_per_doc")
    outputs = _outputs_of_evidence(signature) if count else outputs_of(signature, (names.LOGITS,))
    chunks = await answer_list(
        replace(call, inputs=[(options.query, text) for text in texts]),
        signature,
        outputs,
        first_text="query",
        keep=partial(_keep_evidence, count) if count else keep_arrays,
        written_bytes=_PAIR_BYTES * count,
    )
    (logits, *written), tokens = joined(chunks)
    scores = scores_of(logits, "identity" if options.raw_scores else "sigmoid")[:, 0]
    ranked = []
    for at in best_first(logits[:, 0]).tolist():
        evidence = {"evidence": orjson.Fragment(written[0][at].item())} if written else {}
        ranked.append({"index": at, score: float(scores[at]), **evidence})
    return model.name, ranked[: options.top_n], tokens


def _pairs_of_evidence(asked: bool | int | None, texts: int) -> int:
    """Return how many pairs of tokens each text is to have as evidence; 0: none."""
    if not isinstance(asked, int) or isinstance(asked, bool):
        return DEFAULT_PAIRS if asked else 0
    most = max(DEFAULT_PAIRS, fields.MOST_PAIRS // texts)
    if asked > most:
        raise InvalidRequestError(
            f"return_evidence must be true, false or from 1 to {most} pairs for each of {texts} texts, "
            f"was {asked}"
        )
    return asked


# ---- Evidence ----------------------------------------------------------------------------------


def _outputs_of_evidence(signature: Signature) -> list[str]:
    """Return the names of the outputs that evidence is made of."""
    by_layer = {
        spec.layer or 0: spec.name for spec in signature.outputs.values() if spec.role == names.ATTENTION
    }
    others = outputs_of(signature, (names.LOGITS, VALUE_NORMS.role, names.SPANS))
    return [*others, names.TOKENS, *(by_layer[layer] for layer in evidence_layers(by_layer))]


def _keep_evidence(count: int, reply: InferReply) -> Kept:
    """Return the logits of a chunk, and its evidence as JSON; attention is gone with the reply.

    Each text has evidence, as its rank is known only at the end.
    """
    contents: Mapping[str, Any] = {
        layout.spec.name: content for layout, content in zip(reply.outputs, reply.contents, strict=True)
    }
    specs = {layout.spec.role: layout.spec for layout in reply.outputs}
    of_layers, norms = specs[VALUE_NORMS.role].layers or (), contents[specs[VALUE_NORMS.role].name]
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


# ---- Labels --------------------------------------------------------------------------------------


async def label_texts(
    call: TextCall[fields.ScoringOptions], model: Signature, parameters: fields.LabelParameters
) -> tuple[list[list[dict[str, Any]]], int]:
    """Label texts, or pairs of texts.

    Args:
        call: Has B texts, or pairs.
        model: A graph of the family.
        parameters: What else the caller says.

    Returns:
        The labels of each, the best first; and the number of tokens.

    Raises:
        RequestError: The caller gets the reason.
        EngineError: The engine failed.
    """
    _check_left_out(parameters, ("aggregation_strategy", "ignore_labels"), f"{model.name} classifies texts")
    signature = cheapest(call.caller.registry, model, (names.LOGITS,))
    has_pairs = not all(isinstance(each, str) for each in call.inputs)
    needed = {names.TEXT, names.TEXT_PAIR} if has_pairs else {names.TEXT}
    logits_of = signature.outputs_by_role.get(names.LOGITS)
    if logits_of is None or not needed <= signature.inputs.keys():
        raise InvalidRequestError(
            f"model must be a classifier that takes such inputs, {signature.name} "
            f"takes {listed(signature.inputs)} and gives {listed(signature.outputs)}"
        )
    (logits,), tokens = joined(await answer_list(call, signature, [logits_of.name]))
    labels, function = labels_of(signature), parameters.function_to_apply
    activation = function or logits_of.scores
    scores = scores_of(logits, "identity" if call.options.raw_scores or function == "none" else activation)
    return [
        [{"label": labels[at], "score": of[at]} for at in best_first(row)[: parameters.top_k].tolist()]
        for row, of in zip(logits, scores, strict=True)
    ], tokens


async def label_tokens(
    call: TextCall[fields.ScoringOptions], signature: Signature, parameters: fields.LabelParameters
) -> Iterator[list[dict[str, Any]]]:
    """Label the tokens of texts; see `label_texts`. Yield what is found in each text."""
    what = f"{signature.name} classifies tokens"
    _check_left_out(call.options, ("raw_scores",), what)
    _check_left_out(parameters, ("top_k", "function_to_apply"), what)
    outputs = outputs_of(signature, (names.LOGITS, names.SPANS))
    found: list[tuple[NDArray[np.float32], NDArray[np.int32]]] = []  # logits [T, C] and spans [T, 3]
    for logits, spans, lengths in await answer_list(call, signature, outputs):
        found += [(logits[at, :length], spans[at, :length]) for at, length in enumerate(lengths.tolist())]
    labels, strategy = labels_of(signature), parameters.aggregation_strategy or "simple"
    ignored = IGNORED_LABELS if parameters.ignore_labels is None else parameters.ignore_labels

    def entities(text: str, logits: NDArray[np.float32], spans: NDArray[np.int32]) -> list[dict[str, Any]]:
        there, words = [], spans[:, 2]
        for each in tags_of(logits, words, labels, aggregation_strategy=strategy, ignore_labels=ignored):
            start, end = int(spans[each.first, 0]), int(spans[each.last, 1])
            token = {"entity": each.label, "index": each.first}
            entity = token if strategy == "none" else {"entity_group": each.label}
            place = {"word": text[start:end], "start": start, "end": end}
            there.append({**entity, "score": each.score, **place})
        return there

    return (entities(text, *each) for text, each in zip(call.inputs, found, strict=True))


def _check_left_out(given: fields.Body, left_out: Iterable[str], why: str) -> None:
    for field in left_out:
        if getattr(given, field) is not None:
            raise InvalidRequestError(f"{field} must be left out: {why}")
