"""Which heads are alike."""

import numpy as np
import pytest

from polyhead_view.heads.redundancy import HeadPair, clustered, most_alike
from polyhead_view.heads.statistics import Redundancy


def test_heads_that_are_alike_come_side_by_side() -> None:
    groups = np.array([0, 1, 2, 0, 1, 2, 0, 1])
    correlation = np.where(groups[:, None] == groups, 0.9, 0.1)
    np.fill_diagonal(correlation, 1)

    order = clustered(Redundancy(correlation=correlation, texts=1))

    assert sorted(order) == list(range(8))
    assert (np.diff(groups[order]) != 0).sum() == 2


@pytest.mark.parametrize("heads", [1, 2])
def test_few_heads_stay_in_order(heads: int) -> None:
    assert clustered(Redundancy(correlation=np.ones((heads, heads)), texts=1)) == list(range(heads))


def test_pairs_come_from_the_most_alike_on_and_without_what_is_not_known() -> None:
    correlation = np.array([[1, 0.2, np.nan], [0.2, 1, 0.7], [np.nan, 0.7, 1]])
    redundancy = Redundancy(correlation=correlation, texts=1)

    assert list(most_alike(redundancy)) == [HeadPair(1, 2, 0.7), HeadPair(0, 1, 0.2)]
    assert sorted(clustered(redundancy)) == [0, 1, 2]
