"""What is compared takes turns in both directions, and ratios are of the same turn."""

import pytest

from benchmarks.turns import in_turn, paired_ratios, time_in_turn


def test_every_second_round_goes_backwards() -> None:
    assert list(in_turn({"a": 1, "b": 2}, 3)) == [["a", "b"], ["b", "a"], ["a", "b"]]


def test_calls_are_run_once_before_they_are_timed_in_both_directions() -> None:
    order: list[str] = []
    seconds = iter(range(100))

    taken = time_in_turn(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        seconds=0,
        clock=lambda: float(next(seconds)),
    )

    assert "".join(order) == "ab" + "abba" * 3
    assert taken == {"a": [1.0] * 6, "b": [1.0] * 6}


def test_ratios_are_of_the_same_turn_and_ascend() -> None:
    assert paired_ratios([4.0, 1.0, 3.0], [2.0, 1.0, 1.0]) == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="shorter"):
        paired_ratios([1.0, 2.0], [1.0])
