"""What must hold of the gain of int8."""

import pytest

from benchmarks.int8_cost import (
    SIZES,
    Ranking,
    judge,
    judge_ranking,
)

FAST = {"fp32": [2.0, 2.4, 9.0], "int8": [1.0, 1.0, 4.0]}


def test_the_median_of_the_turns_counts() -> None:
    slow = FAST | {"int8": [1.0, 1.2, 4.0]}
    samples = {
        ("minilm", threads, size): FAST if threads == 1 else slow for threads in (1, 2) for size in SIZES
    }

    conditions = judge(samples)

    assert [one.holds for one in conditions] == [True] * 4 + [False] * 3 + [True]
    assert conditions[0].name == "minilm, B × T = 1 × 16, 1 thread: ≥ 2.2 × fp32"
    assert {one.seen for one in conditions} == {"2.250 (2.000–2.400)", "2.000 (2.000–2.250)"}


@pytest.mark.parametrize(("people", "cosine"), [(0.49, 0.996), (0.47, 0.996), (0.49, 0.994)])
def test_int8_ranks_as_fp32_does(people: float, cosine: float) -> None:
    conditions = judge_ranking(
        {
            "fp32": Ranking(with_people=0.5, with_fp32=1.0, least_cosine=1.0),
            "int8": Ranking(with_people=people, with_fp32=0.99, least_cosine=cosine),
        }
    )

    assert [one.holds for one in conditions] == [people >= 0.48, cosine >= 0.995]
