"""How sure a number is.

Two things make a measured quantile uncertain. Within a block there are only so many requests: order
statistics bound the quantile, whatever the distribution, of requests that are independent of each other (in
one queue they are not quite). Between blocks the machine differs: other work, clocks, memory layout;
requests of one block share that, so however many they are, they cannot tell.
An interval here covers both. Few blocks are what there is, and resampling five of them (a bootstrap) gives
intervals that are too narrow by a third; so blocks are treated as a small sample of logarithms, with
Student's t.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Values = NDArray[np.float64]

CONFIDENCE = 0.95

FEWEST_BLOCKS = 3
"""Fewer say next to nothing of how blocks differ: two give an interval seven times as wide as five do."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value, and where it lies with `CONFIDENCE`."""

    value: float
    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    def overlaps(self, other: "Interval") -> bool:
        """Return whether both have something in common."""
        return self.low <= other.high and other.low <= self.high

    def facts(self) -> dict[str, float]:
        """Return it as JSON values."""
        return {"value": self.value, "low": self.low, "high": self.high}


def quantile_interval(values: Values, share: float, *, confidence: float = CONFIDENCE) -> Interval | None:
    """Return a quantile of independent values, by order statistics.

    Args:
        values: [N], in any order.
        share: Which quantile, from 0 to 1.
        confidence: Of the interval.

    Returns:
        The quantile, or None where there are too few values to bound it on both sides: for the 0.99
        quantile that takes 368.
    """
    count = len(values)
    tail = (1 - confidence) / 2
    # The number of values below the quantile is binomial; ranks count from 1.
    low, high = int(stats.binom.ppf(tail, count, share)), int(stats.binom.ppf(1 - tail, count, share)) + 1
    if count == 0 or low < 1 or high > count:
        return None
    ordered = np.sort(values)
    value = float(np.quantile(ordered, share, method="inverted_cdf"))
    return Interval(value=value, low=float(ordered[low - 1]), high=float(ordered[high - 1]))


def pooled_quantile(blocks: Sequence[Values], share: float) -> Interval | None:
    """Return a quantile of several blocks' values together; None where there are too few values.

    The interval holds that of the order statistics, and from three blocks on also that of their quantiles.
    """
    filled = [block for block in blocks if len(block)]
    if not filled:
        return None
    within = quantile_interval(np.concatenate(filled), share)
    if within is None or len(filled) < FEWEST_BLOCKS:
        return within
    between = _mean_of_logs([_quantile(block, share) for block in filled])
    return Interval(value=within.value, low=min(within.low, between.low), high=max(within.high, between.high))


def paired_ratio(ours: Sequence[float], baselines: Sequence[float]) -> Interval | None:
    """Return the ratio of values that were measured in the same blocks; None for fewer than three.

    What slows a whole block down is in both, and cancels.
    """
    if len(ours) != len(baselines):
        raise ValueError(f"both must have as many blocks, were {len(ours)} and {len(baselines)}")
    if len(ours) < FEWEST_BLOCKS:
        return None
    return _mean_of_logs([own / base for own, base in zip(ours, baselines, strict=True)])


def fewest_answers(share: float) -> int:
    """Return how many a block must have for its quantile to be more than its largest value: for p99, 100."""
    return round(1 / (1 - share))


def blocks_ratio(ours: Sequence[Values], baselines: Sequence[Values], share: float) -> Interval | None:
    """Return the ratio of a quantile of all blocks together, and where it lies.

    A quantile far out is biased upwards by how few values there are, and cells differ in that. So the ratio
    is that of all blocks together. How sure it is is judged in two ways, and the interval holds both: by
    leaving out each block in turn (a jackknife), and by Student's t over the blocks' own ratios. The first
    alone is too narrow for p95 and p99 of a queue, which a few bad moments make: to leave out a block that
    had none of them changes nothing. What slows a whole block down is in both sides, and cancels.

    Args:
        ours: The values of each block.
        baselines: Those of the same blocks, of what is compared with.
        share: Which quantile, from 0 to 1.

    Returns:
        The ratio, or None for fewer than three blocks, or where one has too few values.

    Raises:
        ValueError: The two differ in how many blocks they have.
    """
    count = len(ours)
    if count != len(baselines):
        raise ValueError(f"both must have as many blocks, were {count} and {len(baselines)}")
    if count < FEWEST_BLOCKS or min(map(len, [*ours, *baselines])) < fewest_answers(share):
        return None

    def log_ratio(left_out: int | None) -> float:
        own, base = (
            np.concatenate([block for place, block in enumerate(blocks) if place != left_out])
            for blocks in (ours, baselines)
        )
        return float(np.log(_quantile(own, share) / _quantile(base, share)))

    whole = log_ratio(None)
    without = np.array([log_ratio(place) for place in range(count)])
    error = float(np.sqrt((count - 1) / count * np.square(without - without.mean()).sum()))
    jackknife = _around(whole, error, count - 1)
    paired = paired_ratio(*([_quantile(block, share) for block in blocks] for blocks in (ours, baselines)))
    if paired is None:  # which the check above excludes
        return jackknife
    return replace(jackknife, low=min(jackknife.low, paired.low), high=max(jackknife.high, paired.high))


def independent_ratio(ours: Sequence[float], baselines: Sequence[float]) -> Interval | None:
    """Return the ratio of values of two runs (Welch's t of logarithms); None for fewer than three blocks."""
    if min(len(ours), len(baselines)) < FEWEST_BLOCKS:
        return None
    one, other = np.log(ours), np.log(baselines)
    difference = float(one.mean() - other.mean())
    parts = one.var(ddof=1) / len(one), other.var(ddof=1) / len(other)
    if sum(parts) == 0:
        value = math.exp(difference)
        return Interval(value=value, low=value, high=value)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(one) - 1) + parts[1] ** 2 / (len(other) - 1))
    return _around(difference, math.sqrt(sum(parts)), freedom)


def _mean_of_logs(values: Sequence[float]) -> Interval:
    logs = np.log(values)
    return _around(float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(len(logs)), len(logs) - 1)


def _around(middle: float, error: float, freedom: float) -> Interval:
    """Return the interval of Student's t about a logarithm, on the scale of its number."""
    reach: Any = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * error
    return Interval(value=math.exp(middle), low=math.exp(middle - reach), high=math.exp(middle + reach))


def _quantile(values: Values, share: float) -> float:
    return float(np.quantile(values, share, method="inverted_cdf"))
