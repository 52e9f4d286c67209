"""Compute confidence intervals of quantiles and of their ratios.

Two things make a measured quantile uncertain. Within a block there are only so many requests: order
statistics bound the quantile, whatever the distribution, if requests are independent of each other (in one
queue they are not quite). Between blocks the machine differs: other work, clocks, memory layout. Requests of
one block share that, so that their number does not help. An interval here covers both. Resampling five blocks
(a bootstrap) gives intervals that are too narrow by a third; so blocks are treated as a small sample of
logarithms, with Student's t.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

T = TypeVar("T")
Values = NDArray[np.float64]

CONFIDENCE = 0.95

FEWEST_BLOCKS = 3
"""Two blocks give an interval seven times as wide as five do."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with its interval at `CONFIDENCE`."""

    value: float
    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    def facts(self) -> dict[str, float]:
        """Return it as JSON values."""
        return asdict(self)

    def widened(self, other: "Interval") -> "Interval":
        """Return this value with an interval that holds both."""
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high))


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

    The interval holds that of the order statistics and, from three blocks on, that of the blocks' quantiles.
    """
    filled = [block for block in blocks if len(block)]
    if not filled:
        return None
    within = quantile_interval(np.concatenate(filled), share)
    if within is None or len(filled) < FEWEST_BLOCKS:
        return within
    return within.widened(_mean_of_logs([_quantile(block, share) for block in filled]))


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
    """Return how many values make a quantile more than the largest of them: for p99, 100."""
    return round(1 / (1 - share))


def blocks_ratio(ours: Sequence[Values], baselines: Sequence[Values], share: float) -> Interval | None:
    """Return the ratio of a quantile of all blocks together, and its interval.

    A quantile far out is biased upwards by how few values there are, and cells differ in that: hence the
    ratio of all blocks together. The interval holds two: that of leaving out each block in turn (a
    jackknife), and that of Student's t over the blocks' own ratios. The first alone is too narrow for p95
    and p99 of a queue, which a few bad moments make: leaving out a block without one changes nothing. What
    slows a whole block down is in both sides, and cancels.

    Args:
        ours: The values of each block.
        baselines: The baseline's values of the same blocks.
        share: Which quantile, from 0 to 1.

    Returns:
        The ratio, or None for fewer than three blocks or too few values in one.

    Raises:
        ValueError: The two differ in their number of blocks.
    """
    count = len(ours)
    if count != len(baselines):
        raise ValueError(f"both must have as many blocks, were {count} and {len(baselines)}")
    if count < FEWEST_BLOCKS or min(map(len, [*ours, *baselines])) < fewest_answers(share):
        return None

    def log_ratio(blocks: Sequence[tuple[Values, Values]]) -> float:
        own, base = (_quantile(np.concatenate(each), share) for each in zip(*blocks, strict=True))
        return float(np.log(own / base))

    left_out = jackknife(list(zip(ours, baselines, strict=True)), log_ratio)
    paired = paired_ratio(*([_quantile(block, share) for block in blocks] for blocks in (ours, baselines)))
    return left_out if paired is None else left_out.widened(paired)


def jackknife(groups: Sequence[T], log_of: Callable[[Sequence[T]], float]) -> Interval:
    """Return the number whose logarithm `log_of` finds from groups, with an interval by Student's t.

    Its error is that of leaving out each group in turn, so that what is in a group may depend on each other.
    """
    count = len(groups)
    without = np.array([log_of([*groups[:place], *groups[place + 1 :]]) for place in range(count)])
    error = float(np.sqrt((count - 1) / count * np.square(without - without.mean()).sum()))
    return _student(log_of(groups), error, count - 1)


def _mean_of_logs(values: Sequence[float]) -> Interval:
    logs = np.log(values)
    return _student(float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(len(logs)), len(logs) - 1)


def _student(middle: float, error: float, freedom: int) -> Interval:
    """Return the interval of Student's t about a logarithm, on the scale of its number."""
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    return _exponential(middle, middle - reach, middle + reach)


def _exponential(value: float, low: float, high: float) -> Interval:
    return Interval(value=math.exp(value), low=math.exp(low), high=math.exp(high))


def _quantile(values: Values, share: float) -> float:
    return float(np.quantile(values, share, method="inverted_cdf"))
