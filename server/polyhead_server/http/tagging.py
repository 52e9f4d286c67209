"""Labels of the tokens of texts: `/predict`, as Hugging Face's inference API answers it.

Shape letters: T tokens, C labels.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.names import LOGITS, SPANS, TEXT
from polyhead_proto.outputs.tagging import AggregationStrategy, tags_of
from polyhead_server.errors import InvalidRequestError, listed
from polyhead_server.http.caller import Caller
from polyhead_server.http.calls import InputSize, answer_list, message_of, request_of_texts, text_bytes
from polyhead_server.http.families import output_of
from polyhead_server.http.scoring import given_parameters, labels_of
from polyhead_server.repository.signature import Signature

Tokens = tuple[NDArray[np.float32], NDArray[np.int32]]
"""The logits [T, C] and spans [T, 3] of a text."""


async def tag(
    caller: Caller,
    signature: Signature,
    texts: Sequence[str],
    name: str,
    *,
    truncate: bool | None,
    aggregation_strategy: AggregationStrategy,
    ignore_labels: Collection[str],
) -> Iterator[list[dict[str, Any]]]:
    """Label the tokens of texts.

    Args:
        caller: Asks for it.
        signature: Of the graph that labels them.
        texts: The texts.
        name: What the caller calls them; see `answer_list`.
        truncate: Whether to cut texts that are too long.
        aggregation_strategy: What gets one label.
        ignore_labels: The labels that are left out.

    Returns:
        What has a label, for each text.

    Raises:
        RequestError: The caller gets the reason.
        EngineError: The engine failed.
    """
    if TEXT not in signature.inputs:
        raise InvalidRequestError(f"model must take texts, {signature.name} takes {listed(signature.inputs)}")
    outputs = [output_of(signature, role) for role in (LOGITS, SPANS)]
    parameters = given_parameters(caller, truncate)
    kept = await answer_list(
        caller,
        [InputSize(0, text_bytes(text)) for text in texts],
        lambda chunk: request_of_texts(
            message_of(signature, outputs, parameters), {TEXT: texts[chunk.start : chunk.stop]}
        ),
        {TEXT: name},
    )
    rows: list[Tokens] = []
    for each in kept:
        logits, spans, lengths = each.arrays
        rows += [(logits[at, :length], spans[at, :length]) for at, length in enumerate(lengths.tolist())]
    labels = labels_of(signature)
    return (
        _entities(text, row, labels, aggregation_strategy, ignore_labels)
        for text, row in zip(texts, rows, strict=True)
    )


def _entities(
    text: str,
    row: Tokens,
    labels: Sequence[str],
    aggregation_strategy: AggregationStrategy,
    ignore_labels: Collection[str],
) -> list[dict[str, Any]]:
    logits, spans = row
    tags = tags_of(
        logits,
        spans[:, 2],
        labels,
        aggregation_strategy=aggregation_strategy,
        ignore_labels=ignore_labels,
    )
    found = []
    for each in tags:
        start, end = int(spans[each.first, 0]), int(spans[each.last, 1])
        is_token = aggregation_strategy == "none"
        entity = {"entity": each.label, "index": each.first} if is_token else {"entity_group": each.label}
        found.append({**entity, "score": each.score, "word": text[start:end], "start": start, "end": end})
    return found
