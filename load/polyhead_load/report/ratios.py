"""How two cells of a run compare."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polyhead_load.sweep.intervals import FEWEST_BLOCKS, Interval, Values, around, paired_ratio


def fewest_answers(share: float) -> int:
    """How many a block must have for its quantile to be more than its largest value: for p99, 100."""
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
    jackknife = around(whole, error, count - 1)
    paired = paired_ratio(*([_quantile(block, share) for block in blocks] for blocks in (ours, baselines)))
    if paired is None:  # which the check above excludes
        return jackknife
    return replace(jackknife, low=min(jackknife.low, paired.low), high=max(jackknife.high, paired.high))


def _quantile(values: Values, share: float) -> float:
    return float(np.quantile(values, share, method="inverted_cdf"))
