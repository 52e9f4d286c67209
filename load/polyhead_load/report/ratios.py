"""How two cells of a run compare."""

from collections.abc import Sequence

import numpy as np

from polyhead_load.sweep.intervals import FEWEST_BLOCKS, Interval, Values, around


def fewest_answers(share: float) -> int:
    """How many a block must have for its quantile to be more than its largest value: for p99, 100."""
    return round(1 / (1 - share))


def blocks_ratio(ours: Sequence[Values], baselines: Sequence[Values], share: float) -> Interval | None:
    """The ratio of a quantile of all blocks together, by a jackknife over the blocks.

    A quantile far out is biased upwards by how few values there are, and cells differ in that. So it is taken
    of all blocks together, and how the blocks differ is seen by leaving out each in turn. What slows a whole
    block down is in both, and cancels.

    Args:
        ours: The values of each block.
        baselines: Those of the same blocks, of what is compared with.
        share: Which quantile, from 0 to 1.

    Returns:
        The ratio, or None for fewer than three blocks, or where one has too few values.
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
        quantiles = [np.quantile(values, share, method="inverted_cdf") for values in (own, base)]
        return float(np.log(quantiles[0] / quantiles[1]))

    whole = log_ratio(None)
    without = np.array([log_ratio(place) for place in range(count)])
    error = float(np.sqrt((count - 1) / count * np.square(without - without.mean()).sum()))
    return around(whole, error, count - 1)
