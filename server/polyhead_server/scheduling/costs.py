"""The cost of a run of B sequences of T tokens, in seconds, learned from the runs that happen.

A run costs a + b·B·T + c·B·T²: a fixed part, the projections, and attention. Times differ from this form by a few
percent. A Kalman filter corrects the logarithms of a, b and c by every run, so that errors count relative to the price
and no part becomes negative. They wander together, with the speed of the machine, and apart, with the shape of the
costs. What recent runs do not show, because all have the same size, returns to the shape of the first runs.
"""

from collections.abc import Mapping
from math import copysign, exp, inf, log
from threading import Lock
from typing import TypeAlias

Size: TypeAlias = tuple[int, int]
"""(B, T) of a request or of a run."""

_TYPICAL = (16.0, 1.0, 1 / 2048)
"""a, b and c in relation to each other, where nothing else is known.

On CPUs, a run's fixed part costs as much as 4 to 24 tokens, and attention as much as the projections at about
T = 6·D.
"""
_FORGET = 0.01
"""The share of what is known of the shape that a run replaces: it goes back to the first within some hundred."""
_SHAPE = 0.2
"""The relative error that the first share of each part may have."""
_SPEED = 0.02
"""The relative difference of the machine's speed between two runs."""
_NOISE = 0.05
"""The relative difference of a run from its price, by chance and because costs are not of this form."""
_FLOOR = 8.0
_RIDGE = 1e-3
_LEAST = 0.01
_STEP = 0.1
"""The most by which one run changes any part, and so any price."""


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
        a, b, c = self._coefficients = _fit(prior)
        self._logs = self._first = log(a), log(b), log(c)
        variance = _SHAPE**2
        self._covariance = variance, 0.0, 0.0, variance, 0.0, variance

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
            a, b, c = a, batch * tokens * b, batch * tokens * tokens * c
            price = a + b + c
            a, b, c = a / price, b / price, c / price
            aa, ab, ac, bb, bc, cc = self._covariance
            # How the error of this price goes together with those of the parts, and its variance.
            with_a, with_b, with_c = aa * a + ab * b + ac * c, ab * a + bb * b + bc * c, ac * a + bc * b + cc * c
            variance = with_a * a + with_b * b + with_c * c
            scale = 1 / (variance + _NOISE * _NOISE)
            error = log(seconds / price)
            step, shared = error * scale, _SPEED**2
            most = _STEP / max(abs(with_a), abs(with_b), abs(with_c))
            if abs(step) > most:
                # So far off, it may be a stall, or a change of speed. It says little about the shape.
                step, scale, shared = copysign(most, error), 0.0, _STEP**2
            log_a, log_b, log_c = self._logs
            first_a, first_b, first_c = self._first
            away_a, away_b, away_c = log_a - first_a, log_b - first_b, log_c - first_c
            speed = (away_a + away_b + away_c) / 3
            log_a += with_a * step + (speed - away_a) * _FORGET
            log_b += with_b * step + (speed - away_b) * _FORGET
            log_c += with_c * step + (speed - away_c) * _FORGET
            keep = 1 - 2 * _FORGET
            own = 2 * _FORGET * _SHAPE**2 + shared
            self._covariance = (
                keep * (aa - with_a * with_a * scale) + own,
                keep * (ab - with_a * with_b * scale) + shared,
                keep * (ac - with_a * with_c * scale) + shared,
                keep * (bb - with_b * with_b * scale) + own,
                keep * (bc - with_b * with_c * scale) + shared,
                keep * (cc - with_c * with_c * scale) + own,
            )
            self._logs = log_a, log_b, log_c
            self._coefficients = exp(log_a), exp(log_b), exp(log_c)


def _fit(prior: Mapping[Size, float]) -> tuple[float, float, float]:
    """Return the a, b and c that fit best by relative errors, each at least a little."""
    speed = min(
        seconds / (_TYPICAL[0] + batch * tokens * (_TYPICAL[1] + tokens * _TYPICAL[2]))
        for (batch, tokens), seconds in prior.items()
    )
    first = [speed * value for value in _TYPICAL]
    rows = [
        (first[0] / seconds, first[1] * batch * tokens / seconds, first[2] * batch * tokens**2 / seconds)
        for (batch, tokens), seconds in prior.items()
    ]
    values = [1.0, 1.0, 1.0]
    for _ in range(200):
        for part in range(3):
            square, product = _RIDGE, _RIDGE
            for row in rows:
                others = sum(row[other] * values[other] for other in range(3) if other != part)
                square += row[part] ** 2
                product += row[part] * (1 - others)
            values[part] = max(product / square, _LEAST)
    a, b, c = (value * multiple for value, multiple in zip(first, values, strict=True))
    return max(a, _FLOOR * b), b, c
