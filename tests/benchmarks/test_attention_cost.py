"""What must hold of the costs of attention."""

from benchmarks.attention_cost import BERT, SIZES, judge
from benchmarks.encoders import MINILM

QUICK = {"fast": [1.0, 2.0, 1.0], "rows": [1.0, 2.1, 9.0], "attention": [1.5, 3.0, 1.5]}
SLOW = QUICK | {"rows": [1.0, 2.2, 1.1], "insight": [1.8, 3.3, 2.0]}


def judged(*slow: tuple[str, tuple[int, int]]) -> list[bool]:
    samples = {(encoder, size): QUICK for encoder, sizes in SIZES.items() for size in sizes}
    return [condition.holds for condition in judge(samples | dict.fromkeys(slow, SLOW))]


def test_the_median_of_the_turns_counts() -> None:
    assert judged() == [True, True, True]
    assert judged((MINILM, (4, 256))) == [True, False, True]
    assert judged((MINILM, (4, 128)), (BERT, (1, 128))) == [True, True, True, False, False]


def test_a_condition_says_what_was_seen() -> None:
    samples = {(encoder, size): QUICK for encoder, sizes in SIZES.items() for size in sizes}

    assert judge(samples | {(BERT, (1, 128)): SLOW})[3].seen == "1.200 (1.100–1.333)"
