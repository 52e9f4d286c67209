"""Running statistics equal those of all values at once."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyhead_view.heads.statistics import RunningCorrelation, RunningSummary


def values(texts: int, seed: int = 0) -> NDArray[np.float32]:
    """[B, L, H, S] with some NaN; one score is defined for one text, another for none."""
    random = np.random.default_rng(seed)
    made = random.normal(100, 1e-2, (texts, 2, 3, 4)).astype(np.float32)
    made[random.random(made.shape) < 0.3] = np.nan
    made[1:, 0, 0, 0] = np.nan
    made[0, 0, 0, 0] = 7
    made[:, 0, 0, 1] = np.nan
    return made


@pytest.mark.parametrize("sizes", [[30], [1] * 30, [7, 13, 10]])
def test_a_summary_is_that_of_all_texts(sizes: list[int]) -> None:
    given = values(30)
    running = RunningSummary()

    for part in np.split(given, np.cumsum(sizes)[:-1]):
        running.add(part)

    summary, exact = running.summary(), given.astype(np.float64)
    count = (~np.isnan(exact)).sum(0)
    np.testing.assert_array_equal(summary.texts, count)
    filled = np.where(np.isnan(exact), 0, exact)
    mean = np.where(count > 0, filled.sum(0) / np.maximum(count, 1), np.nan)
    squares = np.where(np.isnan(exact), 0, (exact - mean) ** 2).sum(0)
    sd = np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.nan)
    np.testing.assert_allclose(summary.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(summary.sd, sd, rtol=1e-9)
    assert (summary.mean[0, 0, 0], summary.texts[0, 0, 0]) == (7, 1)
    assert np.isnan(summary.sd[0, 0, 0])
    assert np.isnan(summary.mean[0, 0, 1])


def test_nothing_cannot_be_summarised() -> None:
    with pytest.raises(ValueError, match="there must be a text to summarise, was none"):
        RunningSummary().summary()
    assert RunningCorrelation().redundancy() is None


def test_cells_that_a_causal_encoder_cannot_fill_are_left_out() -> None:
    previous, first = np.eye(6, k=-1), np.zeros((6, 6))
    first[:, 0] = 1
    running = RunningCorrelation()

    running.add(np.stack([previous, first])[None], causal=True)

    redundancy: Any = running.redundancy()
    cells = np.tril_indices(6)
    assert redundancy.correlation[0, 1] == pytest.approx(np.corrcoef(previous[cells], first[cells])[0, 1])


def test_a_map_that_does_not_vary_has_no_correlation() -> None:
    maps = np.random.default_rng(0).random((1, 3, 4, 4))
    maps[0, 1] = 0.25
    running = RunningCorrelation()

    running.add(maps, causal=False)
    first: Any = running.redundancy()
    running.add(np.random.default_rng(1).random((1, 3, 4, 4)), causal=False)
    second: Any = running.redundancy()

    assert np.isnan(first.correlation[1]).all()
    assert np.isfinite(second.correlation).all()
