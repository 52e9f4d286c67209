"""Statistics over a corpus, in memory that does not grow with it.

Shape letters: B batch, T tokens, H heads, L layers, S scores.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreSummary:
    """Every score of every head over the texts for which it is defined."""

    mean: NDArray[np.float64]
    """[L, H, S]; NaN where the score was defined for no text."""
    sd: NDArray[np.float64]
    """[L, H, S], the standard deviation over texts (n - 1); NaN where fewer than two have the score."""
    texts: NDArray[np.int64]
    """[L, H, S], the number of texts that have the score."""

    @property
    def standard_error(self) -> NDArray[np.float64]:
        """[L, H, S], that of the mean: sd / √texts; NaN where the sd is."""
        return self.sd / np.sqrt(np.maximum(self.texts, 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Redundancy:
    """How alike the maps of two heads are, of one family or of two."""

    correlation: NDArray[np.float64]
    """[L * H, L * H], layer by layer: Pearson's correlation of two maps' cells, the mean over texts; NaN
    where one of the maps never varied. Of two families, rows are heads of the first."""
    texts: int
    """The number of texts whose maps were compared."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadStatistics:
    """The heads of a model, by one kind of attention: raw or norm-weighted."""

    scores: ScoreSummary
    redundancy: Redundancy | None
    """None if there was no map."""


class RunningSummary:
    """Mean and standard deviation over batches, by the update of Chan, Golub and LeVeque (1979)."""

    def __init__(self) -> None:
        self._count: NDArray[np.int64] | None = None
        self._mean: NDArray[np.float64] = np.zeros(())
        self._squares: NDArray[np.float64] = np.zeros(())
        """Sums of squared differences from the mean."""

    def add(self, scores: NDArray[Any]) -> None:
        """Add the scores of some texts, [B, L, H, S]; NaN is left out."""
        values = np.asarray(scores, np.float64)
        known = ~np.isnan(values)
        count = known.sum(0)
        mean = np.divide(np.where(known, values, 0).sum(0), count, out=np.zeros(count.shape), where=count > 0)
        squares = (np.where(known, values - mean, 0) ** 2).sum(0)
        if self._count is None:
            self._count, self._mean, self._squares = count, mean, squares
            return
        both = self._count + count
        step = mean - self._mean
        share = np.divide(count, both, out=np.zeros(both.shape), where=both > 0)
        self._squares = self._squares + squares + step**2 * self._count * share
        self._mean = self._mean + step * share
        self._count = both

    def summary(self) -> ScoreSummary:
        """Return the statistics of all that was added.

        Raises:
            ValueError: Nothing was added.
        """
        if self._count is None:
            raise ValueError("there must be a text to summarise, was none")
        variance = np.divide(
            self._squares, self._count - 1, out=np.full(self._mean.shape, np.nan), where=self._count > 1
        )
        return ScoreSummary(
            mean=np.where(self._count > 0, self._mean, np.nan), sd=np.sqrt(variance), texts=self._count
        )


class RunningCorrelation:
    """Correlations between the maps of all pairs of heads, of one family or of two."""

    def __init__(self) -> None:
        self._sum: NDArray[np.float64] | None = None
        self._count: NDArray[np.int64] = np.zeros((), np.int64)
        self._texts = 0

    def add(
        self, maps: NDArray[np.float64], others: NDArray[np.float64] | None = None, *, causal: bool
    ) -> None:
        """Add the maps of one text.

        Args:
            maps: [L, H, T, T]; the scale of each does not matter.
            others: Those of another family; None means the same.
            causal: Whether queries see no later keys. Those cells, which are 0 for all heads, are left out.
        """
        first = _standardised(maps, causal=causal)
        second = first if others is None else _standardised(others, causal=causal)
        known = np.logical_and.outer(first.any(axis=1), second.any(axis=1))
        if self._sum is None:
            self._sum, self._count = np.zeros(known.shape), np.zeros(known.shape, np.int64)
        self._sum += first @ second.T  # 0 where a map does not vary
        self._count += known
        self._texts += 1

    def redundancy(self) -> Redundancy | None:
        """Return the correlations; None if no text was short enough."""
        if self._sum is None:
            return None
        correlation = np.divide(
            self._sum, self._count, out=np.full(self._sum.shape, np.nan), where=self._count > 0
        )
        return Redundancy(correlation=correlation, texts=self._texts)


def _standardised(maps: NDArray[np.float64], *, causal: bool) -> NDArray[np.float64]:
    """Return the cells of each map less their mean, of length 1, [L * H, cells]; 0 if a map does not vary."""
    tokens = maps.shape[-1]
    cells = np.tril_indices(tokens) if causal else np.indices((tokens, tokens)).reshape(2, -1)
    flat = maps.reshape(-1, tokens, tokens)[:, cells[0], cells[1]].astype(np.float64)
    flat -= flat.mean(1, keepdims=True)
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    np.divide(flat, length, out=flat, where=length > 0)
    return flat


class RunningStatistics:
    """Both, for one kind of attention."""

    def __init__(self) -> None:
        self.scores = RunningSummary()
        self.maps = RunningCorrelation()

    def statistics(self) -> HeadStatistics:
        """Return the statistics of all that was added.

        Raises:
            ValueError: No scores were added.
        """
        return HeadStatistics(scores=self.scores.summary(), redundancy=self.maps.redundancy())
