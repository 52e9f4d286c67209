"""Label texts, or their tokens. Shape letters: B texts, C labels, T tokens."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyhead_proto.names import LOGITS, SPANS, TEXT, TEXT_PAIR, TRUNCATE
from polyhead_proto.outputs.logits import best_first, scores_of
from polyhead_proto.outputs.tagging import IGNORED_LABELS, AggregationStrategy, tags_of
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.http.caller import Caller
from polyhead_server.http.calls import answer_list, joined, message_of
from polyhead_server.http.dialects import ScoringOptions
from polyhead_server.http.fields import Body, Count, Described
from polyhead_server.http.tasks import cheapest, has, labels_of, output_of
from polyhead_server.repository.signature import Signature


class LabelParameters(Body):
    """How texts or tokens are labelled, in the words of Hugging Face's inference API."""

    top_k: Count | None = None
    """Of texts: the most labels of each, all by default"""
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    """Of texts: what makes scores of logits, by default what the checkpoint's library takes"""
    aggregation_strategy: AggregationStrategy | None = None
    """Of tokens: what gets one label, simple by default"""
    ignore_labels: Annotated[list[str], Field(fail_fast=True, max_length=4096)] | None = None
    """Of tokens: the labels to leave out, O by default"""


class Label(Described):
    """A label of a text."""

    label: str
    score: float


class LabelledText(Described):
    """A part of a text that has a label."""

    score: float
    word: str
    start: int
    """Its place in the text, in characters"""
    end: int


class LabelledEntity(LabelledText):
    """What stands together under one label."""

    entity_group: str


class LabelledToken(LabelledText):
    """A token's label."""

    entity: str
    index: int
    """Which token it is, special ones included"""


async def label_texts(
    caller: Caller,
    model: Signature,
    field: str,
    texts: Sequence[str | tuple[str, str]],
    *,
    options: ScoringOptions,
    parameters: LabelParameters,
) -> tuple[list[list[dict[str, Any]]], int]:
    """Label texts, or pairs of texts.

    Args:
        caller: Asks for it.
        model: A graph of the family.
        field: What the caller calls an input; with `[]`, one of many.
        texts: B texts, or pairs.
        options: What else the caller says.
        parameters: Likewise.

    Returns:
        The labels of each, the best first; and the number of tokens.

    Raises:
        RequestError: The caller gets the reason.
        EngineError: The engine failed.
    """
    _check_left_out(parameters, ("aggregation_strategy", "ignore_labels"), f"{model.name} classifies texts")
    signature = cheapest(caller.registry, model, (LOGITS,))
    has_pairs = not all(isinstance(each, str) for each in texts)
    needed = {TEXT, TEXT_PAIR} if has_pairs else {TEXT}
    if not (needed <= signature.inputs.keys() and has(signature, (LOGITS,))):
        raise InvalidRequestError(
            f"model must be a classifier that takes such inputs, {signature.name} "
            f"takes {listed(signature.inputs)} and gives {listed(signature.outputs)}"
        )
    message = message_of(
        signature, [output_of(signature, LOGITS)], caller.given({TRUNCATE: options.truncate})
    )
    names = dict.fromkeys((TEXT, TEXT_PAIR), field)
    (logits,), tokens = joined(await answer_list(caller, signature, message, texts, names))
    labels, function = labels_of(signature), parameters.function_to_apply
    activation = function or signature.outputs[output_of(signature, LOGITS) or ""].scores
    scores = scores_of(logits, "identity" if options.raw_scores or function == "none" else activation)
    return [
        [{"label": labels[at], "score": of[at]} for at in best_first(row)[: parameters.top_k].tolist()]
        for row, of in zip(logits, scores, strict=True)
    ], tokens


async def label_tokens(
    caller: Caller,
    signature: Signature,
    field: str,
    texts: Sequence[str],
    *,
    options: ScoringOptions,
    parameters: LabelParameters,
) -> Iterator[list[dict[str, Any]]]:
    """Label the tokens of texts; see `label_texts`. Yield what is found in each text."""
    what = f"{signature.name} classifies tokens"
    _check_left_out(options, ("raw_scores",), what)
    _check_left_out(parameters, ("top_k", "function_to_apply"), what)
    message = message_of(
        signature,
        [output_of(signature, role) for role in (LOGITS, SPANS)],
        caller.given({TRUNCATE: options.truncate}),
    )
    found: list[tuple[NDArray[np.float32], NDArray[np.int32]]] = []  # logits [T, C] and spans [T, 3]
    for logits, spans, lengths in await answer_list(caller, signature, message, texts, {TEXT: field}):
        found += [(logits[at, :length], spans[at, :length]) for at, length in enumerate(lengths.tolist())]
    labels, strategy = labels_of(signature), parameters.aggregation_strategy or "simple"
    ignored = IGNORED_LABELS if parameters.ignore_labels is None else parameters.ignore_labels

    def entities(text: str, logits: NDArray[np.float32], spans: NDArray[np.int32]) -> list[dict[str, Any]]:
        there = []
        for each in tags_of(
            logits, spans[:, 2], labels, aggregation_strategy=strategy, ignore_labels=ignored
        ):
            start, end = int(spans[each.first, 0]), int(spans[each.last, 1])
            token = {"entity": each.label, "index": each.first}
            entity = token if strategy == "none" else {"entity_group": each.label}
            place = {"word": text[start:end], "start": start, "end": end}
            there.append({**entity, "score": each.score, **place})
        return there

    return (entities(text, *each) for text, each in zip(texts, found, strict=True))


def _check_left_out(given: Body, fields: Iterable[str], why: str) -> None:
    for field in fields:
        if getattr(given, field) is not None:
            raise InvalidRequestError(f"{field} must be left out: {why}")
