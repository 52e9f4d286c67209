"""What must hold of the costs of attention."""

from attention_cost import SIZES, judge

QUICK = {"fast": [1.0, 2.0, 1.0], "rows": [1.0, 2.1, 9.0], "attention": [1.5, 3.0, 1.5]}


def test_the_median_of_the_turns_counts() -> None:
    slow = QUICK | {"rows": [1.0, 2.2, 1.1], "insight": [1.8, 3.3, 2.0]}
    conditions = judge({size: slow if size[1] == 128 else QUICK for size in SIZES})

    assert [condition.holds for condition in conditions] == [True, True, True, False]
    assert conditions[3].seen == "1.200 ×"
    assert all(
        one.holds == (index != 1)
        for index, one in enumerate(judge({size: slow if size == (4, 256) else QUICK for size in SIZES}))
    )
