"""Contenders take turns."""

import pytest

from gpu.card import Cpu
from gpu.timing import compare, ratio


class Scripted(Cpu):
    """A clock that says what it was told, call by call."""

    def __init__(self, milliseconds: dict[str, float]) -> None:
        self._milliseconds = milliseconds
        self.asked: list[tuple[str, int]] = []

    def milliseconds(self, call: object, runs: int) -> float:
        name = call()  # type: ignore[operator]
        self.asked.append((name, runs))
        return self._milliseconds[name]


def test_each_round_times_everyone_once_for_as_long() -> None:
    card = Scripted({"quick": 0.5, "slow": 20.0})

    samples = compare(card, {"quick": lambda: "quick", "slow": lambda: "slow"}, sample_ms=60, rounds=3)

    assert samples == {"quick": [0.5] * 3, "slow": [20.0] * 3}
    assert card.asked[-6:] == [("quick", 120), ("slow", 3)] * 3


def test_what_takes_longer_than_a_sample_runs_once() -> None:
    card = Scripted({"huge": 5000.0})

    compare(card, {"huge": lambda: "huge"}, sample_ms=60, rounds=1)

    assert card.asked[-1] == ("huge", 1)


def test_the_ratio_is_that_of_the_median_round() -> None:
    samples = {"slow": [2.0, 9.0, 3.0], "fast": [1.0, 1.0, 2.0]}

    assert ratio(samples, "slow", "fast") == pytest.approx(2.0)
    assert ratio(samples, "slow", "missing") is None
    assert ratio({"slow": [], "fast": []}, "slow", "fast") is None
