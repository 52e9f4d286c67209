"""How two cells compare."""

import numpy as np
import pytest

from polyhead_load.report.ratios import blocks_ratio, fewest_answers


def test_a_known_ratio_is_found_whatever_a_block_does() -> None:
    random = np.random.default_rng(1)
    slow = np.exp(0.3 * random.standard_normal(5))
    ours, base = ([each * 5 * np.exp(0.05 * random.standard_normal(300)) for each in slow] for _ in range(2))

    ratio = blocks_ratio([1.2 * block for block in ours], base, 0.5)

    assert ratio is not None
    assert ratio.value == pytest.approx(1.2, abs=0.02)
    assert 1.2 in ratio
    assert ratio.high - ratio.low < 0.05


def test_fewer_answers_do_not_make_a_tail_look_shorter() -> None:
    """The mean of the blocks' own ratios would be biased by as much as a tenth of the difference."""
    random = np.random.default_rng(2)
    found = []
    for _ in range(200):
        few, many = ([np.exp(random.standard_normal(size)) for _ in range(5)] for size in (100, 400))
        ratio = blocks_ratio(few, many, 0.99)
        assert ratio is not None
        found.append(np.log(ratio.value))

    assert abs(np.mean(found)) < 0.05


def test_too_little_is_no_ratio() -> None:
    blocks = [np.ones(fewest_answers(0.99) - 1)] * 5

    assert fewest_answers(0.99) == 100
    assert blocks_ratio(blocks, blocks, 0.99) is None
    assert blocks_ratio(blocks, blocks, 0.95) is not None
    assert blocks_ratio(blocks[:2], blocks[:2], 0.5) is None
    with pytest.raises(ValueError, match="as many blocks, were 5 and 4"):
        blocks_ratio(blocks, blocks[:4], 0.5)
