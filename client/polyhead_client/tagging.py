"""The results of classifiers of tokens: labels, and where they are in the texts.

Shape letters: B texts, T tokens, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from numpy.typing import NDArray

from polyhead_client.errors import InvalidRequest
from polyhead_proto.outputs.tagging import AggregationStrategy, tags_of


@dataclass(frozen=True)
class Entity:
    """A part of a text that a classifier of tokens has given a label."""

    label: str
    """As the classifier names it where tokens are not aggregated; otherwise what follows the first hyphen, if
    there is one, as transformers does: without `B-` and `I-`, but of `follow-up` just `up`."""
    score: float
    """Its probability; the mean where several tokens or words have it."""
    word: str
    """text[start:end]."""
    start: int
    end: int
    """Where it is in the text that was sent, in characters."""
    tokens: range
    """The positions of its tokens: the `queries` of `encode` whose attention speaks for the label."""


def check_strategy(aggregation_strategy: object) -> None:
    """Check the aggregation strategy of `tag`.

    Raises:
        InvalidRequest: There is no such strategy.
    """
    strategies = get_args(AggregationStrategy)
    if aggregation_strategy not in strategies:
        raise InvalidRequest(
            f"aggregation_strategy must be one of {', '.join(strategies)}, was {aggregation_strategy!r}"
        )


def entities_of(
    texts: Sequence[str],
    logits: Sequence[NDArray[Any]],
    spans: Sequence[NDArray[Any]],
    labels: Sequence[str],
    *,
    aggregation_strategy: AggregationStrategy,
    ignore_labels: Sequence[str],
) -> list[list[Entity]]:
    """Return the entities of each of B texts, from logits [T, C] and spans [T, 3]; see `Encoding`."""
    return [
        [
            Entity(tag.label, tag.score, text[start:end], start, end, range(tag.first, tag.last + 1))
            for tag in tags_of(
                its_logits,
                its_spans[:, 2],
                labels,
                aggregation_strategy=aggregation_strategy,
                ignore_labels=ignore_labels,
            )
            for start, end in [(int(its_spans[tag.first, 0]), int(its_spans[tag.last, 1]))]
        ]
        for text, its_logits, its_spans in zip(texts, logits, spans, strict=True)
    ]
