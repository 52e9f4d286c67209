"""Which heads do the same: pairs and order of a matrix of correlations."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from polyhead_view.heads.statistics import Redundancy


class HeadPair(NamedTuple):
    """Two heads, by their rows in the matrix."""

    a: int
    b: int
    correlation: float


def clustered(redundancy: Redundancy) -> list[int]:
    """Return the heads in an order that puts similar ones side by side.

    The order is that of the leaves of average linkage, with the distance 1 - correlation.
    """
    correlation = np.nan_to_num(redundancy.correlation)
    if len(correlation) < 3:
        return list(range(len(correlation)))
    distance = np.clip(1 - (correlation + correlation.T) / 2, 0, 2)
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=True)
    return [int(leaf) for leaf in leaves_list(tree)]


def most_alike(redundancy: Redundancy) -> Iterator[HeadPair]:
    """Iterate over pairs of different heads, from the highest correlation to the lowest."""
    rows, columns = np.triu_indices(len(redundancy.correlation), 1)
    values = redundancy.correlation[rows, columns]
    for at in np.argsort(-values, kind="stable").tolist():  # NaN comes last
        if np.isnan(values[at]):
            return
        yield HeadPair(int(rows[at]), int(columns[at]), float(values[at]))
