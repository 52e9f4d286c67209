"""The cost of a run of B sequences of T tokens, in seconds, learned from the runs that happen.

A run costs a + b·B·T + c·B·T²: a fixed part, the projections, and attention. Times differ from this form by a few
percent. A model starts from a few timed runs and is corrected by every run that follows, in two parts: the speed,
which multiplies all prices and follows within some ten runs, and the shape, the ratios of a, b and c, which hardly
change and are fitted by least squares over some hundred runs. Where these say nothing about the shape, because
all have the same size, it stays that of the first runs.
"""

from collections.abc import Mapping, Sequence
from math import exp, inf, log
from threading import Lock
from typing import TypeAlias

Size: TypeAlias = tuple[int, int]
"""(B, T) of a request or of a run."""

_TYPICAL = (16.0, 1.0, 1 / 2048)
"""a, b and c in relation to each other, where nothing else is known.

A run's fixed part costs as much as some 4 to 24 tokens on CPUs, and attention as much as the projections at about
T = 6·D.
"""
_SPEED_MEMORY = 10
"""Runs after which the speed has followed a change by two thirds. A single odd run moves it by a tenth at most."""
_SHAPE_MEMORY = 100
"""The same for the shape: enough that the noise of single runs, some 5 %, averages out."""
_RIDGE = 0.003
"""The weight of the first shape against that of all remembered runs."""
_LEAST = 0.02
"""No part falls below this share of its first value, so that each can come back."""


class CostModel:
    """Prices of the runs of one graph in one way.

    `observe` may be called from several threads.

    Args:
        prior: Seconds of some runs.

    Raises:
        ValueError: There is none, or a size or a time is not above 0.
    """

    def __init__(self, prior: Mapping[Size, float]) -> None:
        if not prior or not all(
            batch > 0 and tokens > 0 and 0 < seconds < inf for (batch, tokens), seconds in prior.items()
        ):
            raise ValueError("a cost model needs at least one run, with B, T and seconds above 0")
        self._lock = Lock()
        self._first = self._coefficients = _TYPICAL
        logs = [log(seconds / self.price(*size)) for size, seconds in prior.items()]
        speed = exp(sum(logs) / len(logs))
        fit = _Fit()
        for (batch, tokens), seconds in prior.items():
            shares = [part * speed / seconds for part in self._parts(batch, tokens)]
            fit.add(shares, 1.0, 1 / len(prior))
        for _ in range(200):
            fit.improve()
        a, b, c = (speed * first * value for first, value in zip(_TYPICAL, fit.values, strict=True))
        self._first = self._coefficients = (a, b, c)
        self._fit = _Fit()
        self._speed = 1.0

    def price(self, batch: int, tokens: int) -> float:
        """Return the seconds of one run of (B, T)."""
        a, b, c = self._coefficients
        return a + batch * tokens * (b + c * tokens)

    def marginal(self, batch: int, tokens: int) -> float:
        """Return the seconds of one run of (B, T) beyond the fixed cost of a run."""
        _, b, c = self._coefficients
        return batch * tokens * (b + c * tokens)

    def observe(self, batch: int, tokens: int, seconds: float) -> None:
        """Correct the prices by a run of (B, T). Times that are not above 0 are ignored."""
        if not 0 < seconds < inf:
            return
        with self._lock:
            price = self.price(batch, tokens)
            error = max(-1.0, min(log(seconds / price), 1.0))
            step = error / _SPEED_MEMORY
            shares = [self._speed * part / price for part in self._parts(batch, tokens)]
            self._speed *= exp(step)
            self._fit.add(shares, exp(error - step), 1 / _SHAPE_MEMORY, forget=1 / _SHAPE_MEMORY)
            self._fit.improve()
            x, y, z = self._fit.values
            a, b, c = self._first
            self._coefficients = (a * x * self._speed, b * y * self._speed, c * z * self._speed)

    def _parts(self, batch: int, tokens: int) -> tuple[float, float, float]:
        a, b, c = self._first
        return a, batch * tokens * b, batch * tokens * tokens * c


class _Fit:
    """Least squares of three values above 0, with a ridge toward 1."""

    def __init__(self) -> None:
        self.values = [1.0, 1.0, 1.0]
        self._squares = [[0.0] * 3 for _ in range(3)]
        self._products = [0.0] * 3

    def add(self, shares: Sequence[float], target: float, weight: float, *, forget: float = 0.0) -> None:
        """Add the equation: the sum of shares × values is the target. Weigh all before by 1 - `forget`."""
        keep = 1.0 - forget
        for row, share, products in zip(self._squares, shares, range(3), strict=True):
            weighted = weight * share
            self._products[products] = keep * self._products[products] + weighted * target
            for column in range(3):
                row[column] = keep * row[column] + weighted * shares[column]

    def improve(self) -> None:
        """Go one step toward the best values: set each to the best beside the others."""
        x, y, z = self.values
        for number, row in enumerate(self._squares):
            others = row[0] * x + row[1] * y + row[2] * z - row[number] * self.values[number]
            best = (self._products[number] + _RIDGE - others) / (row[number] + _RIDGE)
            self.values[number] = max(_LEAST, best)
            x, y, z = self.values
