"""The cost of a run, in seconds, learned from the runs that happen.

A run of B sequences costs a + b·N + c·B·T²: a fixed part, the layers' work on each of N tokens, and
attention, which is padded to the longest sequence. In graphs that pad, N is B·T. Times differ from this form
by a few percent. A Kalman filter corrects the logarithms of a, b and c by every run, so that errors count
relative to the price and no part becomes negative. The three change together, with the speed of the machine,
and apart, with the shape of the costs. Where runs say nothing about the shape, because all have the same
size, it goes back to the shape of the first runs, at the present speed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from math import copysign, exp, inf, log, sqrt
from threading import Lock
from typing import NamedTuple

import numpy as np


class Size(NamedTuple):
    """The size of a request or of a run."""

    rows: int
    """B, its sequences."""
    longest: int
    """T, padding included."""
    tokens: int
    """N, the tokens that layers compute: all B·T, or in packed graphs those that exist. What requests ask of
    their sequences counts as tokens of as many bytes."""

    @classmethod
    def full(cls, rows: int, longest: int) -> "Size":
        """Return the size of sequences that are all as long, or padded."""
        return cls(rows, longest, rows * longest)


DOUBLING_TOKENS = 40_000
"""How many tokens in a run double the cost of a token on CPUs, whose caches do not hold all activations.

One-thread runs on two CPUs showed 17,000 to 33,000, runs with all threads more; plans cost least in between.
"""

SIZES = ((1, 8), (8, 8), (1, 64), (1, 256), (8, 64))
"""Small ones first: together they show the fixed cost, that of tokens, and that of attention."""
LARGE_SIZES = (*SIZES, (64, 64), (128, 128), (256, 128))
"""For GPUs, which do not show what a token costs in a run of fewer."""
_MEASURING_SECONDS = 0.02
"""For each size."""
_MOST_RUNS = 5
"""Runs of a size: so many that hardly all of them are disturbed."""

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
        if not prior or not all(min(size) > 0 and 0 < seconds < inf for size, seconds in prior.items()):
            raise ValueError("a cost model needs at least one run, with B, T, N and seconds above 0")
        self._doubling_tokens = doubling_tokens
        self._lock = Lock()
        self._set(*_fitted(prior))
        self._first = self._logs
        self._covariances = _SHAPE**2, 0.0, 0.0, _SHAPE**2, 0.0, _SHAPE**2
        for size, seconds in prior.items():  # which makes the shape less uncertain
            self.observe(size, seconds)
        # Without a fixed part nothing is joined, and so nothing shows that joining saves time. So it is first
        # at least half of what is typical; where it is less, runs will show it.
        log_a, log_b, log_c = self._logs
        self._set(max(log_a, log_b + log(_TYPICAL[0] / 2)), log_b, log_c)
        self._first = self._logs

    @property
    def fixed(self) -> float:
        """What any run takes, in seconds."""
        return self._coefficients[0]

    def price(self, size: Size) -> float:
        """Return the seconds of a run."""
        a, b, c = self._coefficients
        rows, longest, tokens = size
        return a + b * tokens + c * rows * longest * longest

    def marginal(self, size: Size) -> float:
        """Return the seconds of a run beyond the fixed cost of any."""
        _, b, c = self._coefficients
        rows, longest, tokens = size
        return b * tokens + c * rows * longest * longest

    def best_tokens(self, size: Size) -> float:
        """Return N of the run in which a token costs least, for tokens that cost as in a run of this size.

        At a fixed cost a, a cost p of a token, and p · n / D more for n tokens in a run, n is √(a · D / p).
        """
        return sqrt(self.fixed * self._doubling_tokens * size.tokens / self.marginal(size))

    def observe(self, size: Size, seconds: float) -> None:
        """Correct the prices by a run. A time that is not above 0, or not finite, is ignored."""
        if not 0 < seconds < inf:
            return
        with self._lock:
            a, b, c = self._coefficients
            b *= size.tokens
            c *= size.rows * size.longest**2
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
    parts = np.array([(1, size.tokens, size.rows * size.longest**2) for size in prior])
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


def measure_prior(
    run: Callable[[int, int], object],
    *,
    max_tokens: int | None,
    fits: Callable[[int, int], bool],
    sizes: Sequence[tuple[int, int]] = SIZES,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Size, float]:
    """Time a few runs, for about 20 ms each size, and so warm the session up.

    The smallest size is run in any case, and twice if the first run ends in time.

    Args:
        run: Runs (B, T) without padding once.
        max_tokens: The largest T of the graph, if it has one.
        fits: Whether a run of (B, T) is within the limits of memory.
        sizes: (B, T) of the runs, small ones first.
        clock: Returns the time in seconds.

    Returns:
        Seconds of a run of each size.
    """
    end = clock() + _MEASURING_SECONDS * len(sizes)
    times: dict[Size, float] = {}
    per_token = 0.0
    for batch, most in sizes:
        longest = min(most, max_tokens or most)
        size = Size.full(batch, longest)
        # At least two runs, since the first of a size also takes memory, and more if they are short. A token
        # takes no longer than in the runs before, as long as attention does not prevail.
        expected = 2 * per_token * size.tokens
        if times and (size in times or not fits(batch, longest) or clock() + expected > end):
            continue
        started = clock()
        for number in range(_MOST_RUNS):
            begun = clock()
            run(batch, longest)
            done = clock()
            # The fastest counts: what else happens at load only slows runs down.
            times[size] = min(times.get(size, inf), max(done - begun, 1e-9))
            if done > end or (number and done - started > _MEASURING_SECONDS):
                break
        per_token = times[size] / size.tokens
    return times
