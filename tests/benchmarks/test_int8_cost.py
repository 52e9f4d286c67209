"""What must hold of the gain of int8."""

from int8_cost import SIZES, judge

FAST = {"fp32": [2.0, 2.4, 9.0], "int8": [1.0, 1.0, 4.0]}


def test_the_median_of_the_turns_counts() -> None:
    slow = FAST | {"int8": [1.0, 1.2, 4.0]}
    samples = {
        ("minilm", threads, size): FAST if threads == 1 else slow for threads in (1, 2) for size in SIZES
    }

    conditions = judge(samples)

    assert [one.holds for one in conditions] == [True] * 4 + [False] * 3 + [True]
    assert conditions[0].name == "minilm, B × T = 1 × 16, 1 thread: ≥ 2.2 × fp32"
    assert {one.seen for one in conditions} == {"2.25 ×", "2.00 ×"}
