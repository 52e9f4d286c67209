"""What is compared takes turns: a slow phase of the machine slows all of it, and ratios are of one turn."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")

_FEWEST_TURNS = 6


def in_turn(items: Iterable[T], rounds: int) -> Iterator[list[T]]:
    """Yield the items for each round, in every second one backwards."""
    forwards = list(items)
    for number in range(rounds):
        yield forwards[::-1] if number % 2 else forwards


def time_in_turn(
    calls: Mapping[str, Callable[[], object]],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Run each call in turn, in both directions, and return the seconds of each run.

    Each call is run once before, unmeasured, and then six times or more.

    Args:
        calls: By name.
        seconds: For how long, about, all of them are run.
        clock: Returns seconds.
    """
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    turns, end = 0, time.perf_counter() + seconds
    while turns < _FEWEST_TURNS or time.perf_counter() < end:
        for order in in_turn(calls, 2):
            turns += 1
            for name in order:
                began = clock()
                calls[name]()
                taken[name].append(clock() - began)
    return taken


def paired_ratios(ours: Iterable[float], others: Iterable[float]) -> list[float]:
    """Return the ratios of what was measured in the same turns, ascending."""
    return sorted(own / other for own, other in zip(ours, others, strict=True))
