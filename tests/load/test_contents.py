import numpy as np
import pytest

from polyhead_load import Lengths
from polyhead_load.contents import draw_lengths, texts, token_ids, vectors

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


def test_texts_have_a_word_for_each_token_but_the_special_ones() -> None:
    assert [len(text.split()) for text in texts([12, 3, 1], random())] == [10, 1, 1]


def test_sequences_of_one_length_are_one_array() -> None:
    assert vectors([5, 5], 8, random()).shape == (2, 5, 8)
    assert token_ids([5, 5], 9, random()).shape == (2, 5)


def test_sequences_of_several_lengths_are_a_list() -> None:
    assert [item.shape for item in vectors([5, 3], 8, random())] == [(5, 8), (3, 8)]
    ids = token_ids([5, 3], 9, random())
    assert [item.shape for item in ids] == [(5,), (3,)]
    assert all(item.min() >= 0 and item.max() < 9 and item.dtype == np.int64 for item in ids)
