"""The cost of a run of B sequences of T tokens, in seconds, learned from the runs that happen.

A run costs a + b·B·T + c·B·T²: a fixed part, the projections, and attention. Times differ from this form by
a few percent. A Kalman filter corrects the logarithms of a, b and c by every run, so that errors count
relative to the price and no part becomes negative. The three change together, with the speed of the machine,
and apart, with the shape of the costs. Where runs say nothing about the shape, because all have the same
size, it goes back to the shape of the first runs, at the present speed.
"""

from collections.abc import Mapping
from math import copysign, exp, inf, log, sqrt
from threading import Lock
from typing import TypeAlias

import numpy as np

Size: TypeAlias = tuple[int, int]
"""(B, T) of a request or of a run."""

DOUBLING_TOKENS = 40_000
"""How many tokens in a run double the cost of a token on CPUs, whose caches do not hold all activations.

One-thread runs on two CPUs showed 17,000 to 33,000, runs with all threads more; plans cost least in between.
"""

_TYPICAL = (16.0, 1.0, 1 / 2048)
"""a, b and c relative to b, where little else is known.

On CPUs the fixed part costs as much as some 4 to 24 tokens. By FLOPs, attention costs as much as the
projections at T = 6·D.
"""
_NOISE = 0.05
"""Expected relative difference of a run from its price, by chance and because the form is not exact."""
_SPEED = 0.02
"""Expected relative change of the machine's speed from one run to the next."""
_SHAPE = 0.3
"""Expected relative error of each part of the first prices."""
_FORGET = 0.005
"""How far the shape returns to the first one with each run: what was learned lasts for some 200 runs."""
_STEP = 0.1
"""The most by which one run changes any part, and so any price."""
_TRUST = 1e-3
"""What the typical shape counts beside a run: little, but runs of one size leave the shape open."""
_ITERATIONS = 50
"""Steps of the fit to the first runs. Parts that are 100 times those of the typical shape need about ten."""


class CostModel:
    """Prices of the runs of one graph in one way.

    `observe` may be called from several threads.

    Args:
        prior: Seconds of some runs.
        doubling_tokens: How many tokens in a run double the cost of a token, because their activations do not
            fit the caches. Prices leave this out: in batches that are worth it, the difference is small.

    Raises:
        ValueError: There is none, or a size or a time is not above 0.
    """

    def __init__(self, prior: Mapping[Size, float], *, doubling_tokens: float = inf) -> None:
        if not prior or not all(
            batch > 0 and tokens > 0 and 0 < seconds < inf for (batch, tokens), seconds in prior.items()
        ):
            raise ValueError("a cost model needs at least one run, with B, T and seconds above 0")
        self._doubling_tokens = doubling_tokens
        self._lock = Lock()
        self._set(*_fitted(prior))
        self._first = self._logs
        self._covariances = _SHAPE**2, 0.0, 0.0, _SHAPE**2, 0.0, _SHAPE**2
        for size, seconds in prior.items():  # which makes the shape less uncertain
            self.observe(*size, seconds)
        # Without a fixed part nothing is joined, and so nothing shows that joining saves time. So it is first
        # at least half of what is typical; where it is less, runs will show it.
        log_a, log_b, log_c = self._logs
        self._set(max(log_a, log_b + log(_TYPICAL[0] / 2)), log_b, log_c)
        self._first = self._logs

    def price(self, batch: int, tokens: int) -> float:
        """Return the seconds of one run of (B, T)."""
        a, b, c = self._coefficients
        return a + batch * tokens * (b + c * tokens)

    def marginal(self, batch: int, tokens: int) -> float:
        """Return the seconds of one run of (B, T) beyond the fixed cost of a run."""
        _, b, c = self._coefficients
        return batch * tokens * (b + c * tokens)

    def best_rows(self, tokens: int) -> float:
        """Return B of the batch at T in which a token costs least.

        At a fixed cost a, a cost p of a token, and p · n / N more for n tokens in a run, n is √(a · N / p).
        """
        return sqrt(self.price(0, 1) * self._doubling_tokens / (self.marginal(1, tokens) * tokens))

    def observe(self, batch: int, tokens: int, seconds: float) -> None:
        """Correct the prices by a run of (B, T). A time that is not above 0, or not finite, is ignored."""
        if not 0 < seconds < inf:
            return
        with self._lock:
            a, b, c = self._coefficients
            b *= batch * tokens
            c *= batch * tokens * tokens
            price = a + b + c
            a, b, c = a / price, b / price, c / price
            # The covariances of each part's error with that of this price, and the variance of the latter.
            aa, ab, ac, bb, bc, cc = self._covariances
            with_a = aa * a + ab * b + ac * c
            with_b = ab * a + bb * b + bc * c
            with_c = ac * a + bc * b + cc * c
            weight = 1 / (with_a * a + with_b * b + with_c * c + _NOISE**2)
            speed = _SPEED**2
            step = (log(seconds) - log(price)) * weight
            most = _STEP / max(abs(with_a), abs(with_b), abs(with_c))
            if abs(step) > most:
                # It may be a stall, or the machine has another speed. It says little about the shape.
                step, weight, speed = copysign(most, step), 0.0, _STEP**2

            log_a, log_b, log_c = self._logs
            first_a, first_b, first_c = self._first
            away_a, away_b, away_c = log_a - first_a, log_b - first_b, log_c - first_c
            away = (away_a + away_b + away_c) / 3
            self._set(
                log_a + with_a * step + (away - away_a) * _FORGET,
                log_b + with_b * step + (away - away_b) * _FORGET,
                log_c + with_c * step + (away - away_c) * _FORGET,
            )

            keep = (1 - _FORGET) ** 2
            shape = (1 - keep) * _SHAPE**2
            self._covariances = (
                keep * (aa - with_a * with_a * weight) + shape + speed,
                keep * (ab - with_a * with_b * weight) + speed,
                keep * (ac - with_a * with_c * weight) + speed,
                keep * (bb - with_b * with_b * weight) + shape + speed,
                keep * (bc - with_b * with_c * weight) + speed,
                keep * (cc - with_c * with_c * weight) + shape + speed,
            )

    def _set(self, log_a: float, log_b: float, log_c: float) -> None:
        self._logs = log_a, log_b, log_c
        self._coefficients = exp(log_a), exp(log_b), exp(log_c)


def _fitted(prior: Mapping[Size, float]) -> list[float]:
    """Return log a, log b and log c with the least squared logarithms of price over time for some runs."""
    parts = np.array([(1, batch * tokens, batch * tokens**2) for batch, tokens in prior])
    seconds = np.array(list(prior.values()))
    typical = np.array(_TYPICAL)
    typical *= (seconds / (parts @ typical)).min()  # at about this machine's speed
    logs = np.zeros(3)  # of a, b and c relative to the typical ones
    for _ in range(_ITERATIONS):  # Gauss and Newton's, in steps that are not too far for it
        costs = parts * typical * np.exp(logs)
        prices = costs.sum(axis=1)
        shares = costs / prices[:, None]
        slope = shares.T @ np.log(seconds / prices) - _TRUST * logs
        logs += np.clip(np.linalg.solve(shares.T @ shares + _TRUST * np.eye(3), slope), -1, 1)
    return [float(part) for part in logs + np.log(typical)]
