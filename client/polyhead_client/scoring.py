"""The results of classifiers and rerankers: labels and texts with scores, the best first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_client.arguments import check_count, check_flag
from polyhead_client.errors import InvalidRequest
from polyhead_client.evidence import EvidencePair
from polyhead_proto.outputs.probabilities import probabilities


@dataclass(frozen=True)
class LabelScore:
    """A label of a classifier."""

    label: str
    score: float
    """Its probability, or its logit."""


@dataclass(frozen=True)
class RankedText:
    """A text that a reranker has compared with a query."""

    index: int
    """Where it was among the texts."""
    score: float
    """The probability that it answers the query, or its logit."""
    text: str
    evidence: tuple[EvidencePair, ...] | None = None
    """The tokens of the query and of the text that attend to each other most; None unless asked for."""


def check_texts(name: str, texts: object) -> list[str]:
    """Return the texts of an argument as a list.

    Raises:
        InvalidRequest: It is not a sequence of strings.
    """
    given = None if isinstance(texts, str) or not isinstance(texts, Sequence) else list(texts)
    if given is None or not all(isinstance(text, str) for text in given):
        raise InvalidRequest(f"{name} must be a list of texts, was {texts!r:.80}")
    return given


def check_scoring(top: object, raw_scores: object) -> int | None:
    """Check what `classify` and `rerank` have in common; return the most results.

    Raises:
        InvalidRequest: One is not what it must be.
    """
    check_flag("raw_scores", raw_scores)
    return check_count("top", top)


def labels_of(
    logits: NDArray[Any], labels: Sequence[str], *, top: int | None, raw_scores: bool
) -> list[list[LabelScore]]:
    """Return the labels of each text, the best first, from logits [B, C]."""
    scores = logits if raw_scores else probabilities(logits)
    return [
        [LabelScore(labels[index], float(row[index])) for index in np.argsort(-row, kind="stable")[:top]]
        for row in scores
    ]


def ranked(
    logits: NDArray[Any], texts: Sequence[str], *, top: int | None, raw_scores: bool
) -> list[RankedText]:
    """Return texts, the best first, from logits [B, 1]."""
    scores = (logits if raw_scores else probabilities(logits))[:, 0]
    order = np.argsort(-scores, kind="stable")[:top]
    return [RankedText(int(index), float(scores[index]), texts[index]) for index in order]
