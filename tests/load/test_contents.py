import numpy as np
import pytest

from polyhead_load import Lengths
from polyhead_load.contents import draw_lengths

LENGTHS = Lengths(median=29, sigma=0.6, low=8, high=128)


def random() -> np.random.Generator:
    return np.random.default_rng(4)


@pytest.mark.parametrize("count", [16, 256])
def test_lengths_have_the_distribution_that_was_asked_for(count: int) -> None:
    lengths = draw_lengths(LENGTHS, count, random())

    assert len(lengths) == count
    assert min(lengths) >= 8
    assert max(lengths) <= 128
    # Drawn from equally likely ranges, so that sixteen are already close.
    assert np.median(lengths) == pytest.approx(29, rel=0.1)
    assert np.mean(lengths) == pytest.approx(29 * np.exp(0.6**2 / 2), rel=0.15)
    assert lengths != sorted(lengths)
    assert lengths == draw_lengths(LENGTHS, count, random())
