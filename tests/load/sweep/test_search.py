"""The search for a capacity, against servers on a virtual clock whose capacity is known."""

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from polyhead_load.sweep.intervals import Interval
from polyhead_load.sweep.search import (
    MOST_RUNS,
    SearchRound,
    Trial,
    capacity_of,
    run_seconds,
)

CLOSED = 180.0
"""Requests a second of a closed loop, from which searches begin."""

LIMIT = 0.05

Server = Callable[[float, int, int], Trial | None]
"""A server: what a run at a rate gives, in a round, by its number; None: it is void."""


@dataclass
class Queue:
    """One server with exponential service times, where requests come at Poisson times: M/M/1.

    A request takes longer than t there with probability exp(-(mu - rate) * t), which gives the capacity.
    """

    mu: float = 200.0
    """Requests a second that it can serve."""
    spread: float = 0.0
    """Standard deviation of the logarithm of its speed, between rounds."""
    seed: int = 0
    seconds: float = 0.0
    """How long all runs took."""
    speeds: dict[int, float] = field(default_factory=dict)

    @property
    def capacity(self) -> float:
        """The largest rate that holds the limit."""
        return self.mu - math.log(100) / LIMIT

    def __call__(self, rate: float, number: int, run: int) -> Trial:
        random = np.random.default_rng([self.seed, number, run])
        speed = math.exp(self.spread * np.random.default_rng([self.seed, number]).standard_normal())
        seconds = run_seconds(rate, LIMIT, 10.0)
        self.seconds += seconds
        due = np.sort(random.uniform(-0.15 * seconds, seconds, round(1.15 * seconds * rate)))
        service = random.exponential(1 / (self.mu * speed), len(due))
        served = np.cumsum(service)
        done = served + np.maximum.accumulate(due - (served - service))
        measured = due >= 0
        return Trial(rate, int(measured.sum()), int((done - due > LIMIT)[measured].sum()))


def wall(capacity: float) -> Server:
    """Every request is in time up to a rate, and late beyond it."""
    return lambda rate, _number, _run: Trial(rate, 1000, 0 if rate <= capacity else 1000)


def planned(late: Sequence[int]) -> Server:
    """So many of 1000 requests are late in each run."""
    return lambda rate, _number, run: Trial(rate, 1000, late[run])


def search(server: Server, count: int = 5) -> list[SearchRound]:
    rounds: list[SearchRound] = []
    for number in range(1, count + 1):
        trials: list[Trial] = []
        stopped = False
        while True:
            now = SearchRound.after(rounds, CLOSED, f"{number}", trials, stopped=stopped)
            if stopped or (rate := now.next_rate) is None:
                break
            trial = server(rate, number, len(trials))
            stopped = trial is None
            trials += [] if trial is None else [trial]
        rounds.append(now)
    return rounds


def found(server: Server, count: int = 5) -> Interval:
    capacity = capacity_of(search(server, count))
    assert capacity is not None
    return capacity


@pytest.mark.parametrize("capacity", [10.0, 90.0, 126.0, 400.0])
def test_a_wall_is_found_between_the_rates_beside_it(capacity: float) -> None:
    rounds = search(wall(capacity))

    one = capacity_of(rounds)
    assert one is not None
    assert one.value == pytest.approx(capacity, rel=0.06)
    assert one.low >= 0.88 * capacity
    assert max(len(each.trials) for each in rounds) <= MOST_RUNS


def test_a_server_that_is_always_late_holds_no_rate() -> None:
    rounds = search(lambda rate, *_: Trial(rate, 1000, 11))

    assert capacity_of(rounds) == Interval(value=0.0, low=0.0, high=0.02 * CLOSED)
    # Further rounds try the lowest rate alone.
    assert [len(each.trials) for each in rounds[1:]] == [1, 1, 1, 1]


def test_a_server_that_holds_all_that_a_generator_can_send_has_no_end_above() -> None:
    one = found(lambda rate, *_: Trial(rate, 1000, 10) if rate < 1000 else None)

    assert math.isinf(one.high)
    assert 500 < one.low <= one.value < 1000


def test_what_cannot_be_measured_at_all_is_not_known() -> None:
    assert capacity_of(search(lambda *_: None)) is None
    assert capacity_of(search(wall(100), count=2)) is None


def test_a_round_that_was_not_finished_does_not_count() -> None:
    *rounds, last = search(wall(100))
    started = SearchRound.after(rounds, CLOSED, "5", last.trials[:1])

    assert started.range is None
    assert started.next_rate == last.trials[1].rate  # and goes on where it was
    assert capacity_of([*rounds, started]) == capacity_of(rounds)


def test_no_rate_of_a_round_holds_above_one_that_does_not() -> None:
    """Whatever its runs come to."""
    for late in itertools.product((0, 1000), repeat=MOST_RUNS):
        (one,) = search(planned(late), count=1)

        assert one.held is None or one.failed is None or one.held < one.failed
        assert one.range is not None
        assert one.range.low <= one.range.value <= one.range.high


def contradictory(held: int, failed: int) -> Interval:
    """What rounds give of which one's rate holds where another's does not, with so many of 1000 late."""
    rounds = [
        SearchRound(
            start=rate, step=1.1, least=1.0, trials=[Trial(rate, 1000, held), Trial(1.1 * rate, 1000, failed)]
        )
        for rate in (100.0, 100.0, 120.0, 150.0, 150.0)
    ]
    found = capacity_of(rounds)
    assert found is not None
    return found


def test_an_estimate_beyond_the_rates_that_were_tried_is_no_certain_end() -> None:
    above, below = contradictory(held=0, failed=11), contradictory(held=10, failed=300)

    assert above.value == pytest.approx(165)
    assert above.low <= above.value
    assert math.isinf(above.high)
    assert below.value == 100
    assert below.low < 50
    assert below.high >= 100


@pytest.mark.parametrize("spread", [0.0, 0.03])
def test_the_interval_covers_the_capacity_of_a_queue(spread: float) -> None:
    """About as often as it says; 24 searches show no more than that."""
    searches = 24
    queues = [Queue(spread=spread, seed=seed) for seed in range(searches)]
    intervals = [found(queue) for queue in queues]

    true = queues[0].capacity
    covered = sum(true in one for one in intervals) / searches
    held = sum(one.low <= true for one in intervals) / searches
    reach = float(np.median([math.sqrt(one.high / one.low) - 1 for one in intervals]))
    mean = float(np.mean([one.value for one in intervals])) / true
    sys.stdout.write(
        f"speeds differ by {spread:.0%}: the interval has the true capacity in {covered:.3f} of searches, "
        f"its lower end is below it in {held:.3f}, it reaches ±{reach:.1%}, the mean is {mean:.3f} of it, "
        f"{np.mean([queue.seconds for queue in queues]):.0f} s of runs\n"
    )
    assert covered >= 0.85
    assert mean == pytest.approx(1, abs=0.05)


def test_a_server_that_changes_has_a_wider_interval() -> None:
    """Its rounds differ, which one of its runs cannot show."""
    quiet, changing = (
        np.median(
            [one.high / one.low for one in (found(Queue(spread=spread, seed=seed)) for seed in range(8))]
        )
        for spread in (0.0, 0.15)
    )

    assert changing > 1.2 * quiet


@pytest.mark.parametrize(
    ("rate", "limit", "seconds"),
    [
        (1000.0, 0.05, 10.0),
        (1000.0, 1.0, 50.0),  # a rate just above what the server can answer makes requests late
        (20.0, 0.05, 25.0),  # five of 500 requests may be late
        (1.0, 0.05, 40.0),  # but four times longer is enough
        (0.01, 0.05, 100.0),  # if that is one request
        (math.inf, 0.05, 10.0),
    ],
)
def test_runs_are_long_enough(rate: float, limit: float, seconds: float) -> None:
    assert run_seconds(rate, limit, 10.0) == seconds
