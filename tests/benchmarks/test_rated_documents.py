"""Pairs of documents, and how they are ranked."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.rated_documents import DOCUMENTS, RATINGS, rank_correlation, rated_documents


def test_documents_come_with_a_rating_for_each_pair(tmp_path: Path) -> None:
    (tmp_path / DOCUMENTS).write_text("a caf\xe9\nthe second\n", encoding="latin-1")
    (tmp_path / RATINGS).write_text("1 0.3\n0 1\n")

    documents, ratings = rated_documents(tmp_path)

    assert documents == ["a café", "the second"]
    assert ratings[0, 1] == 0.3

    (tmp_path / DOCUMENTS).write_text("only one\n")
    with pytest.raises(ValueError, match="a rating for each pair of 1 documents"):
        rated_documents(tmp_path)


def test_only_the_order_of_pairs_counts() -> None:
    similar = np.array([[9, 1, 2], [9, 9, 3], [9, 9, 9]], float)

    assert rank_correlation(similar, similar**3) == pytest.approx(1)
    assert rank_correlation(similar, -similar) == pytest.approx(-1)
    assert rank_correlation(similar, similar.T * 0 + [[0, 2, 1], [0, 0, 3], [0, 0, 0]]) == pytest.approx(0.5)
