"""What the logits of tokens say: labels of tokens, or of what stands together.

As transformers' pipeline for token classification aggregates them. Shape letters: T tokens, C labels.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead_proto.outputs.logits import softmax

AggregationStrategy = Literal["none", "simple", "first", "average", "max"]
"""What gets one label: each token; neighbours with the same label; or neighbours of whole words, whose label
is that of their first token, that of their tokens' mean, or that of their surest token."""

IGNORED_LABELS = ("O",)
"""The labels that are left out by default: outside of all entities."""


class Tag(NamedTuple):
    """A label, and the tokens that have it."""

    label: str
    """Of a token alone as the classifier names it; otherwise what follows the first hyphen, if there is one,
    as transformers does: without `B-` and `I-`, but of `follow-up` just `up`."""
    score: float
    """Its probability; the mean where several tokens or words have it."""
    first: int
    last: int
    """The positions of its first and last token."""


def tags_of(
    logits: NDArray[Any],
    words: NDArray[Any],
    labels: Sequence[str],
    *,
    aggregation_strategy: AggregationStrategy,
    ignore_labels: Collection[str],
) -> list[Tag]:
    """Return the labels of a text.

    Args:
        logits: [T, C].
        words: [T]: the number of the word of each token, ascending; negative for tokens that are left out.
        labels: The C labels.
        aggregation_strategy: What gets one label.
        ignore_labels: The labels that are left out.
    """
    positions = np.flatnonzero(words >= 0)
    scores, words = softmax(logits[positions]), words[positions]
    ends: NDArray[Any] = np.arange(1, len(words) + 1)
    if aggregation_strategy not in ("none", "simple"):
        ends = ends[np.diff(words, append=-1) != 0]
    tags, start = [], 0
    for end in ends.tolist():
        its = scores[start] if end == start + 1 else _of_word(scores[start:end], aggregation_strategy)
        best = int(its.argmax())
        tags.append(Tag(labels[best], float(its[best]), int(positions[start]), int(positions[end - 1])))
        start = end
    if aggregation_strategy != "none":
        tags = list(_groups(tags))
    return [tag for tag in tags if tag.label not in ignore_labels]


def _of_word(scores: NDArray[Any], aggregation_strategy: AggregationStrategy) -> NDArray[Any]:
    """Return the scores [C] of a word from those of its tokens."""
    if aggregation_strategy == "average":
        mean: NDArray[Any] = scores.mean(0)
        return mean
    one: NDArray[Any] = scores[0 if aggregation_strategy == "first" else scores.max(-1).argmax()]
    return one


def _groups(tags: Sequence[Tag]) -> Iterator[Tag]:
    """Join neighbours with the same label, unless a later one begins anew (`B-`)."""
    group: list[Tag] = []
    for tag in tags:
        if group and (tag.label.startswith("B-") or _name(tag.label) != _name(group[-1].label)):
            yield _joined(group)
            group = []
        group.append(tag)
    if group:
        yield _joined(group)


def _name(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


def _joined(group: Sequence[Tag]) -> Tag:
    score = float(np.mean([tag.score for tag in group]))
    return Tag(group[0].label.split("-", 1)[-1], score, group[0].first, group[-1].last)
