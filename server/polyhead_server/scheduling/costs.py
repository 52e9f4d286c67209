"""The cost of a run of B sequences of T tokens, in seconds, from measured points (B, T).

Between points the price is linear in T, then in B. Beyond them it goes on as it grew: past the largest T
measured, price(B, T) = price(B, Tmax) · (T / Tmax)^p, with p from the last two T at B = 1; past the largest
B measured at a T, price(B, T) = price(Bmax, T) · B / Bmax, so that no batch is expected to gain more than was
measured. Below the smallest T, its price holds. Prices never fall as B or T grows: a point that was measured
lower than a smaller one gets the smaller one's price.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Points = Mapping[tuple[int, int], float]
"""Seconds of a run of (B, T)."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of an engine."""

    points: Points
    gains: Mapping[int, float] = field(default_factory=dict)
    """By the tokens (B × T) of a run: the throughput of several runs at once over that of one at a time."""


class CostTable:
    """Prices of runs.

    Args:
        points: The measurements. Every T needs a point with B = 1.
        rows: Returns the largest batch at a T, by memory and settings.
        gains: What several runs at once gain, as in `Measured`; without any, they always gain.

    Raises:
        ValueError: There is no point, one has no B = 1 beside it, or a time is not above 0.
    """

    def __init__(
        self,
        points: Points,
        *,
        rows: Callable[[int], int] = lambda _tokens: 256,
        gains: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        self._tokens = np.array(sorted({tokens for _, tokens in points}), np.float64)
        self._batches = np.array(sorted({batch for batch, _ in points}), np.float64)
        if not points or any((1, int(tokens)) not in points for tokens in self._tokens):
            raise ValueError("a cost table needs a point with B = 1 for every T")
        if not all(0 < seconds < float("inf") for seconds in points.values()):
            raise ValueError("a cost table's times must be above 0")
        self._grid = self._complete(points)
        self._gain_tokens = sorted(gains) or [1]
        self.longest = int(self._tokens[-1])
        """The largest T that was measured."""
        self._growth = _growth(self._grid[0], self._tokens)
        self._gains = [gains.get(total, float("inf")) for total in self._gain_tokens]
        self._max_rows = rows
        self._rows: dict[int, tuple[float, ...]] = {}
        self._slopes: dict[int, float] = {}
        self.cached_plans: dict[tuple[int, int], list[int]] = {}
        """Cuts of (count, T) equal requests, cached by `planning`."""

    def rows(self, tokens: int) -> tuple[float, ...]:
        """Return the prices at T for B = 0, 1, … up to the largest batch."""
        row = self._rows.get(tokens)
        if row is None:
            most = max(1, min(self._max_rows(tokens), 256))
            row = (0.0, *self._prices(np.arange(1, most + 1, dtype=np.float64), tokens).tolist())
            self._rows[tokens] = row
        return row

    def price(self, batch: int, tokens: int) -> float:
        """Return the seconds of one run of (B, T)."""
        row = self._rows.get(tokens) or self.rows(tokens)
        if batch < len(row):
            return row[batch]
        return float(self._prices(np.array([batch], np.float64), tokens)[0])

    def gain(self, batch: int, tokens: int) -> float:
        """Return the throughput of several runs of (B, T) at once, over that of one at a time."""
        return float(np.interp(batch * tokens, self._gain_tokens, self._gains))

    def slope(self, tokens: int) -> float:
        """Return the least that one more sequence adds to a batch at T."""
        slope = self._slopes.get(tokens)
        if slope is None:
            row = self.rows(tokens)
            steps = (after - before for before, after in pairwise(row[1:]))
            self._slopes[tokens] = slope = min(steps, default=float("inf"))
        return slope

    def share(self, batch: int, tokens: int) -> float:
        """Return the least that B sequences of T can cost, in the best batch."""
        return batch * min(self.rows(tokens)[best] / best for best in (1, len(self.rows(tokens)) - 1))

    def _prices(self, batches: NDArray[np.float64], tokens: int) -> NDArray[np.float64]:
        at_tokens = np.array([np.interp(tokens, self._tokens, prices) for prices in self._grid])
        at_tokens *= max(1.0, tokens / self.longest) ** self._growth
        prices: NDArray[np.float64] = np.interp(batches, self._batches, at_tokens)
        prices *= np.maximum(1.0, batches / self._batches[-1])
        return prices

    def _complete(self, points: Points) -> NDArray[np.float64]:
        """Fill the grid of all (B, T)."""
        grid = np.empty((len(self._batches), len(self._tokens)))
        for column, tokens in enumerate(self._tokens):
            largest = 1
            for row, batch in enumerate(self._batches):
                size = (int(batch), int(tokens))
                if size in points:
                    largest = int(batch)
                grid[row, column] = points[largest, int(tokens)] * batch / largest
        return np.maximum.accumulate(np.maximum.accumulate(grid, axis=0), axis=1)


def _growth(prices: NDArray[np.float64], tokens: NDArray[np.float64]) -> float:
    """Return the power of T with which prices grow at the end of the table, 1 to 2.

    Projections grow with T, attention with T²: a price grows neither more slowly nor faster.
    """
    if len(tokens) == 1:
        return 1.0
    power = np.log(prices[-1] / prices[-2]) / np.log(tokens[-1] / tokens[-2])
    return float(np.clip(power, 1.0, 2.0))
