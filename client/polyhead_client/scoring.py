"""The results of classifiers and rerankers: labels and texts with scores, the best first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from numpy.typing import NDArray

from polyhead_client.errors import InvalidRequest
from polyhead_proto.outputs.evidence import EvidencePair
from polyhead_proto.outputs.logits import ScoreActivation, best_first, scores_of
from polyhead_proto.wants import check_count, check_flag

Scores = Literal["sigmoid", "checkpoint"]
"""What turns a reranker's logits into scores: a sigmoid, or what the checkpoint names."""


@dataclass(frozen=True)
class LabelScore:
    """A label of a classifier."""

    label: str
    score: float
    """Its probability, or its logit; of a regression, its number."""


@dataclass(frozen=True)
class RankedText:
    """A text that a reranker has compared with a query."""

    index: int
    """Where it was among the texts."""
    score: float
    """The probability that it answers the query, its logit, or what the checkpoint makes of that."""
    text: str
    evidence: tuple[EvidencePair, ...] | None = None
    """The tokens of the query and of the text that attend to each other most; None unless asked for."""


def check_scoring(top: object, raw_scores: object) -> int | None:
    """Check what `classify` and `rerank` have in common; return the most results.

    Raises:
        InvalidRequest: One is not what it must be.
    """
    check_flag("raw_scores", raw_scores)
    return check_count("top", top)


def check_activation(activation: object, *, raw_scores: bool) -> None:
    """Check what turns the logits of `rerank` into scores.

    Raises:
        InvalidRequest: There is no such activation, or scores are to be logits.
    """
    known = get_args(Scores)
    if activation not in known:
        raise InvalidRequest(f"activation must be one of {', '.join(known)}, was {activation!r}")
    if raw_scores and activation == "checkpoint":
        raise InvalidRequest("raw_scores must be False where activation is 'checkpoint', was True")


def check_known(activation: str | None, what: str) -> None:
    """Check the activation that metadata names, which may be a newer server's; `what` begins the message.

    Raises:
        InvalidRequest: This client does not know it.
    """
    if activation not in (None, *get_args(ScoreActivation)):
        raise InvalidRequest(f"{what} makes scores by {activation!r}, which this client does not know")


def labels_of(
    logits: NDArray[Any], labels: Sequence[str], *, top: int | None, activation: str | None
) -> list[list[LabelScore]]:
    """Return the labels of each text, the best first, from logits [B, C]; see `scores_of`."""
    scores = scores_of(logits, activation)
    return [
        [LabelScore(labels[index], float(of[index])) for index in best_first(row)[:top]]
        for row, of in zip(logits, scores, strict=True)
    ]


def ranked(
    logits: NDArray[Any], texts: Sequence[str], *, top: int | None, activation: str
) -> list[RankedText]:
    """Return texts, the best first, from logits [B, 1]; see `scores_of`."""
    scores = scores_of(logits, activation)[:, 0]
    order = best_first(logits[:, 0])[:top]
    return [RankedText(int(index), float(scores[index]), texts[index]) for index in order]
