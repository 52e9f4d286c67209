"""The sentences on which encoders are compared."""

import pytest

from benchmarks.sentences import (
    natural_texts,
    share_of_tokens,
    split_paragraphs,
)


def test_paragraphs_and_points_of_a_page() -> None:
    points = "* A point\n  of two lines.\n* Another."
    page = f"# Title\n\nA first [one](there.md)\nof prose.\n\n{points}\n\n| no | table |"

    assert split_paragraphs(page) == ["A first one of prose.", "A point of two lines.", "Another."]


def test_natural_texts_differ_in_length_and_are_the_same_every_time() -> None:
    texts = natural_texts(192)
    words = sorted(len(text.split()) for text in texts)

    assert len(set(texts)) == 192
    assert texts == natural_texts(192)
    assert 10 <= words[96] <= 25
    assert words[-1] > 4 * words[96]


@pytest.mark.parametrize(("batch", "share"), [(1, 1.0), (2, 10 / 14), (3, 10 / 15), (9, 10 / 16)])
def test_which_share_of_padded_batches_exists(batch: int, share: float) -> None:
    assert share_of_tokens([4, 2, 1, 3], batch) == pytest.approx(share)
