"""The cost of a run of B sequences of T tokens, in seconds, learned from the runs that happen.

A run costs a + b·B·T + c·B·T²: a fixed part, the projections, and attention. Times differ from this form by a few
percent. A Kalman filter corrects the logarithms of a, b and c by every run, so that errors count relative to the price
and no part becomes negative. They wander together, with the speed of the machine, and apart, with the shape of the
costs. What recent runs do not show, because all have the same size, returns to the shape of the first runs.
"""

from collections.abc import Mapping
from math import exp, inf, log
from threading import Lock
from typing import TypeAlias

Size: TypeAlias = tuple[int, int]
"""(B, T) of a request or of a run."""

_TYPICAL = (16.0, 1.0, 1 / 2048)
"""a, b and c in relation to each other, where nothing else is known.

On CPUs, a run's fixed part costs as much as 4 to 24 tokens, and attention as much as the projections at about
T = 6·D.
"""
_MEMORY = 100
"""Runs after which what was learned has lost two thirds of its weight."""
_NOISE = 0.05
"""The relative difference of a run from its price that is expected, from noise and from the form."""
_SHAPE = 0.2
"""The relative difference of each part from its first share that is expected."""
_SPEED = 0.2
"""The relative difference of the speed that is expected after as many runs as are remembered."""
_STEP = 0.1
"""The most by which one run changes the price of its size."""


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
        self._coefficients = _TYPICAL
        speed = min(seconds / self.price(*size) for size, seconds in prior.items())
        self._logs = [log(speed * value) for value in _TYPICAL]
        self._first = list(self._logs)
        self._coefficients = tuple(map(exp, self._logs))
        together, apart = _SPEED**2, _SHAPE**2
        self._covariance = [[together + apart * (row == column) for column in range(3)] for row in range(3)]
        for _ in range(_MEMORY):
            for size, seconds in prior.items():
                self.observe(*size, seconds)
        self._first = list(self._logs)

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
            a, b, c = self._coefficients
            parts = a, batch * tokens * b, batch * tokens * tokens * c
            price = sum(parts)
            x, y, z = (part / price for part in parts)
            covariance = self._covariance
            effects = [row[0] * x + row[1] * y + row[2] * z for row in covariance]
            explained = effects[0] * x + effects[1] * y + effects[2] * z
            scale = 1 / (explained + _NOISE**2)
            gain = explained * scale
            step = max(-_STEP, min(gain * log(seconds / price), _STEP)) / explained
            logs = self._logs
            away = [value - first for value, first in zip(logs, self._first, strict=True)]
            mean = sum(away) / 3
            for row in range(3):
                logs[row] += effects[row] * step - (away[row] - mean) / _MEMORY
                for column in range(3):
                    known = covariance[row][column] - effects[row] * effects[column] * scale
                    unknown = _SPEED**2 + _SHAPE**2 * (row == column)
                    covariance[row][column] = known + (unknown - known) * 2 / _MEMORY
            self._coefficients = exp(logs[0]), exp(logs[1]), exp(logs[2])
