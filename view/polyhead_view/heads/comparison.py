"""Compare the heads of two families, or of two versions of one, over a corpus.

Shape letters: H heads, L layers, S scores.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead_client import Client, InvalidRequest
from polyhead_view.heads.formats import role_names
from polyhead_view.heads.roles import Role, role_counts
from polyhead_view.heads.statistics import (
    HeadStatistics,
    Redundancy,
    RunningCorrelation,
    RunningSummary,
    ScoreSummary,
)
from polyhead_view.heads.survey import HeadSurvey, RunningSurvey, SurveyedBatch, in_batches


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadDifferences:
    """What differs between the heads of two families, by one kind of attention."""

    scores: ScoreSummary | None
    """Of each text's score in the second family less that in the first, [L, H, S]; None if the families have
    other layers or heads."""
    correlation: Redundancy | None
    """How alike the maps of the first family's heads, the rows, and of the second's are; None if there was no
    text that both cut into the same tokens, and few enough for their thumbnails."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadComparison:
    """The heads of two families over the same corpus."""

    a: HeadSurvey
    b: HeadSurvey
    scores: tuple[str, ...]
    """The names of the S scores that both have."""
    raw: HeadDifferences
    """Of attention weights."""
    weighted: HeadDifferences
    """Of norm-weighted attention."""

    @property
    def same_heads(self) -> bool:
        """Whether both families have the same layers and heads, so that heads are compared by number."""
        return (self.a.layers, self.a.heads) == (self.b.layers, self.b.heads)

    def name_of(self, survey: HeadSurvey) -> str:
        """Name one of the families; its version, if both are of the same."""
        return f"version {survey.version}" if self.a.model == self.b.model else survey.model

    @property
    def kinds(self) -> "tuple[ComparedKind, ComparedKind]":
        """What there is of each kind of attention."""
        return (
            ComparedKind("raw", self.a.raw, self.b.raw, self.raw),
            ComparedKind("weighted", self.a.weighted, self.b.weighted, self.weighted),
        )


class ComparedKind(NamedTuple):
    """What two families have of one kind of attention."""

    name: str
    """raw or weighted."""
    a: HeadStatistics
    b: HeadStatistics
    differences: HeadDifferences


class RoleChange(NamedTuple):
    """The roles that a head has in one family alone."""

    layer: int
    head: int
    lost: tuple[str, ...]
    """Those of the first family that it lacks in the second."""
    gained: tuple[str, ...]


class ScoreDifference(NamedTuple):
    """What a score of a head is in both families."""

    layer: int
    head: int
    score: str
    a: float
    b: float
    difference: float
    """The mean over texts of b less a."""
    standard_error: float


def compare_heads(
    client: Client,
    corpus: Sequence[str],
    *,
    against: str,
    model: str | None = None,
    version: int | str | None = None,
    against_version: int | str | None = None,
    truncate: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> HeadComparison:
    """Survey two families over the same texts, and compare their heads text by text.

    A difference is the mean over the texts that have the score in both, so that its standard error leaves out
    what varies from text to text in both alike. Heads of the same number are the same only if one family was
    made from the other: the correlations of all maps show whether they are.

    Args:
        client: A client of the server of both.
        corpus: The texts.
        against: The second family.
        model: The first family; None means the only one that takes texts.
        version: The version of the first; None means the newest.
        against_version: The version of the second, likewise.
        truncate: Whether to truncate texts that are too long, instead of raising an error.
        progress: Called with the number of texts that are done, and of all.

    Raises:
        InvalidRequest: There is no text, a text is too long, a family has no insight graph, both are the
            same, or have no score in common.
        PolyheadError: A call failed.
    """
    first = RunningSurvey(client, model=model, version=version, truncate=truncate)
    second = RunningSurvey(client, model=against, version=against_version, truncate=truncate)
    running = _RunningDifferences()
    in_batches(corpus, lambda texts: running.add(first.add(texts), second.add(texts)), progress)
    return HeadComparison(
        a=first.survey(),
        b=second.survey(),
        scores=running.names,
        raw=running.raw.differences(),
        weighted=running.weighted.differences(),
    )


def role_changes(comparison: HeadComparison, kind: ComparedKind) -> list[RoleChange]:
    """Return the heads whose roles differ, by one kind of attention of both families."""
    changes = []
    for at, head in np.ndindex(len(comparison.a.layers), comparison.a.heads):
        before, after = (
            role_names(survey, statistics.scores, at, head)
            for survey, statistics in ((comparison.a, kind.a), (comparison.b, kind.b))
        )
        lost = tuple(role for role in before if role not in after)
        gained = tuple(role for role in after if role not in before)
        if lost or gained:
            changes.append(RoleChange(comparison.a.layers[at], head, lost, gained))
    return changes


def count_roles(comparison: HeadComparison) -> dict[Role, list[int | None]]:
    """Return role → how many heads have it, None where the scores cannot show it.

    The counts are those of the first and the second family for each of `comparison.kinds`.
    """
    counts = [
        role_counts(survey.scores, statistics.scores.mean)
        for kind in comparison.kinds
        for survey, statistics in ((comparison.a, kind.a), (comparison.b, kind.b))
    ]
    roles = dict.fromkeys(role for each in counts for role in each)
    return {role: [each.get(role) for each in counts] for role in roles}


def largest_differences(comparison: HeadComparison, kind: ComparedKind) -> Iterator[ScoreDifference]:
    """Iterate over scores of heads that differ, from the largest difference on.

    Scores have several units, so a difference counts by its share of the largest mean of its score.
    """
    if (of := kind.differences.scores) is None:
        return
    first, second = common_means(comparison, kind)
    both = np.abs(np.stack([first, second])).reshape(-1, len(comparison.scores))
    most = np.nanmax(both, axis=0, initial=0)
    shares = np.abs(of.mean) / np.where(most > 0, most, 1)
    for flat in np.argsort(-shares, axis=None, kind="stable").tolist():  # NaN comes last
        at, head, score = (int(each) for each in np.unravel_index(flat, shares.shape))
        if not shares[at, head, score] > 0:
            return
        yield ScoreDifference(
            layer=comparison.a.layers[at],
            head=head,
            score=comparison.scores[score],
            a=float(first[at, head, score]),
            b=float(second[at, head, score]),
            difference=float(of.mean[at, head, score]),
            standard_error=float(of.standard_error[at, head, score]),
        )


def common_means(
    comparison: HeadComparison, kind: ComparedKind
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the means of the scores that both families have, [L, H, S] of each."""
    first, second = (
        statistics.scores.mean[..., [survey.scores.index(name) for name in comparison.scores]]
        for survey, statistics in ((comparison.a, kind.a), (comparison.b, kind.b))
    )
    return first, second


def same_numbers(correlation: Redundancy) -> NDArray[np.float64]:
    """Return the correlations of heads of the same number, [L * H], of families with the same heads."""
    return np.asarray(correlation.correlation.diagonal())


def most_alike_in_other(correlation: Redundancy) -> list[tuple[int, float] | None]:
    """Return for each head of the first family the row of the most alike one of the second, and how alike.

    None for a head whose map never varied.
    """
    found: list[tuple[int, float] | None] = []
    for row in correlation.correlation:
        known = not np.isnan(row).all()
        found.append((int(np.nanargmax(row)), float(np.nanmax(row))) if known else None)
    return found


class _RunningPair:
    """What differs by one kind of attention, over the texts so far."""

    def __init__(self) -> None:
        self.scores: RunningSummary | None = None
        self.maps = RunningCorrelation()

    def differences(self) -> HeadDifferences:
        return HeadDifferences(
            scores=None if self.scores is None else self.scores.summary(),
            correlation=self.maps.redundancy(),
        )


class _RunningDifferences:
    """What differs between two families, over the texts so far."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.raw, self.weighted = _RunningPair(), _RunningPair()

    def add(self, first: SurveyedBatch, second: SurveyedBatch) -> None:
        """Add what both families say of the same texts.

        Raises:
            InvalidRequest: They are the same, or have no score in common.
        """
        names = [(batch.encoding.model, batch.encoding.version) for batch in (first, second)]
        if names[0] == names[1]:
            family = names[0][0].partition(".")[0]
            raise InvalidRequest(
                f"against must be another family or version, was {family}, version {names[0][1]}, too"
            )
        self.names = tuple(name for name in first.scores.names if name in second.scores.names)
        if not self.names:
            raise InvalidRequest(f"{names[0][0]} and {names[1][0]} must have a score in common, have none")
        if (first.scores.layers, first.scores.heads) == (second.scores.layers, second.scores.heads):
            for running, a, b in (
                (self.raw, first.scores, second.scores),
                (self.weighted, first.weighted_scores, second.weighted_scores),
            ):
                running.scores = running.scores or RunningSummary()
                running.scores.add(
                    np.stack([b[name].astype(np.float64) - a[name] for name in self.names], axis=-1)
                )
        for at, (mine, theirs) in enumerate(
            zip(first.encoding.tokens or (), second.encoding.tokens or (), strict=True)
        ):
            if mine == theirs and (maps := first.maps(at)) and (others := second.maps(at)):
                causal = first.causal and second.causal
                self.raw.maps.add(maps[0], others[0], causal=causal)
                self.weighted.maps.add(maps[1], others[1], causal=causal)
