"""How time is shared out."""

import pytest

from gpu.budget import Budget, Deadline


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_shares_are_of_what_is_left() -> None:
    clock = Clock()
    budget = Budget(100.0, {"one": 1.0, "two": 1.0, "three": 2.0}, clock)

    assert budget.allow("one") == pytest.approx(25.0)
    clock.now += 10.0  # 15 s less than it might have taken: the others get them
    assert budget.allow("two") == pytest.approx(30.0)
    clock.now += 50.0  # 20 s too many: the last one lacks them
    assert budget.allow("three") == pytest.approx(40.0)


def test_nothing_is_left_when_it_is_used_up() -> None:
    clock = Clock()
    budget = Budget(10.0, {"one": 1.0, "two": 1.0}, clock)
    budget.allow("one")
    clock.now += 11.0

    assert budget.allow("two") == 0.0
    assert budget.left == pytest.approx(-1.0)


def test_a_deadline_says_what_fits() -> None:
    clock = Clock()
    deadline = Deadline(10.0, clock)
    clock.now += 4.0

    assert deadline.left == pytest.approx(6.0)
    assert deadline.fits(5.0)
    assert not deadline.fits(7.0)
    clock.now += 60.0
    assert deadline.left == 0.0
