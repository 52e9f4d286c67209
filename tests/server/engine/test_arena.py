"""What an arena keeps follows what recent runs needed."""

from collections.abc import Iterable

import pytest

from polyhead_server.engine.arena import Arena

MIB = 2**20


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def arena(clock: Clock) -> Arena:
    return Arena(clock)


def one_by_one(arena: Arena, sizes: Iterable[int]) -> list[bool]:
    """Whether each of these runs is to shrink the arena, in MiB."""
    shrunk = []
    for size in sizes:
        shrunk.append(arena.begin(size * MIB))
        arena.end(size * MIB)
    return shrunk


def test_steady_work_never_shrinks_it(arena: Arena, clock: Clock) -> None:
    for second in range(600):
        clock.now = second
        assert one_by_one(arena, [100, 20]) == [False, False]


def test_a_huge_run_is_given_back_by_the_next_that_is_not(arena: Arena) -> None:
    assert one_by_one(arena, [20, 400, 300, 20, 20]) == [False, False, False, True, False]


def test_a_burst_is_given_back_once_it_is_a_minute_ago(arena: Arena, clock: Clock) -> None:
    for _ in range(5):
        arena.begin(40 * MIB)
    for _ in range(5):
        arena.end(40 * MIB)

    shrunk = []
    for second in range(1, 120):
        clock.now = second
        shrunk += one_by_one(arena, [40])

    assert shrunk.count(True) == 1
    assert 30 <= shrunk.index(True) <= 60


def test_what_came_before_a_long_silence_is_given_back(arena: Arena, clock: Clock) -> None:
    one_by_one(arena, [100])
    clock.now = 1000

    assert one_by_one(arena, [20, 20]) == [True, False]


def test_runs_at_once_count_together(arena: Arena, clock: Clock) -> None:
    for second in range(0, 600, 5):
        clock.now = second
        assert [arena.begin(100 * MIB), arena.begin(100 * MIB)] == [False, False]
        arena.end(100 * MIB)
        arena.end(100 * MIB)


def test_it_can_be_made_to_forget(arena: Arena) -> None:
    one_by_one(arena, [200])
    arena.forget()

    assert one_by_one(arena, [20, 20]) == [True, False]
