"""Whether int8 ranks documents as people do."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.compare.int8 import Ranking, judge_rankings, rank, rated_documents


def test_documents_come_with_a_rating_for_each_pair(tmp_path: Path) -> None:
    (tmp_path / "lee.cor").write_text("a caf\xe9\nthe second\n", encoding="latin-1")
    (tmp_path / "similarities0-1.txt").write_text("1 0.3\n0 1\n")

    documents, ratings = rated_documents(tmp_path)

    assert documents == ["a café", "the second"]
    assert ratings[0, 1] == 0.3

    (tmp_path / "lee.cor").write_text("only one\n")
    with pytest.raises(ValueError, match="a rating for each pair of 1 documents"):
        rated_documents(tmp_path)


def test_only_the_order_of_pairs_counts() -> None:
    exact = np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)  # cosines 0.6, 0, 0.8
    swapped = np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)  # 0.8, 0, 0.6
    ratings = np.array([[1, 0.5, 0.1], [0, 1, 0.9], [0, 0, 1]])

    found = rank({"int8": lambda *_: swapped, "fp32": lambda *_: exact}, ["a", "b", "c"], ratings)

    assert found["fp32"].with_people == found["fp32"].with_fp32 == pytest.approx(1)
    assert found["int8"].with_people == found["int8"].with_fp32 == pytest.approx(0.5)
    assert found["int8"].least_cosine == pytest.approx(0.96)


@pytest.mark.parametrize(("people", "cosine"), [(0.49, 0.996), (0.47, 0.996), (0.49, 0.994)])
def test_int8_ranks_as_fp32_does(people: float, cosine: float) -> None:
    conditions = judge_rankings(
        {
            "fp32": Ranking(with_people=0.5, with_fp32=1.0, least_cosine=1.0, mean_cosine=1.0),
            "int8": Ranking(with_people=people, with_fp32=0.99, least_cosine=cosine, mean_cosine=cosine),
        }
    )

    assert [one.holds for one in conditions] == [people >= 0.48, cosine >= 0.995]
