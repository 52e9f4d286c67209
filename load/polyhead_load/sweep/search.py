"""Search the largest rate that holds a limit on p99: which rate to try next, and what all tries come to.

A run holds the limit if at most 1 % of its requests were late, that is, took longer or failed. Each *round*
is a search by itself. It brackets the rate between one that holds and one that does not, and halves that
range on a logarithmic scale until its ends differ by at most 12 %. The first round begins near 70 % of what
a closed loop gave, further ones near what the rounds before found, at a place that a seed chooses.

**The capacity is estimated from all runs of all rounds**, by binomial regression of the late requests on the
logarithm of the rate, with the complementary log-log link (McCullagh & Nelder, Generalized Linear Models,
section 4.3): at a rate r, the share 1 - exp(-h) of the requests is late, log h is linear in log r, and the
capacity is the rate at which that share is 1 %. In a queue below its limit the share is about exponential in
the rate, and beyond it nearly all are late; so it is here. To interpolate within each round alone would give
3 to 8 % too much: of runs at the true capacity, more than half have fewer than 1 % late, others many more.

**The interval leaves out each round in turn** (the jackknife, of whole groups: Efron & Stein, The Jackknife
Estimate of Variance, Annals of Statistics 9, 1981), with Student's t. Rounds have arrivals of their own and,
where the sweep starts its server, a server of their own, so that it holds what a repetition changes. The
regression's own error would not do: in a queue many requests are late at once, not one by one.

Where that rate is beyond all that were tried, rounds contradict each other. No such rate is claimed: above
them the interval has no end, and below them it reaches from what is estimated to what was tried.

Where a round has no end above (the generator reached its limit first) or below (not even a fiftieth of the
closed loop's rate holds), the interval reaches from the least that a round says to the most, which may be
without end. The least of R rounds is above the median of what rounds give with probability 1 / 2**R (sign
test): 0.06 for four.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from polyhead_load.sweep.intervals import FEWEST_BLOCKS, Interval, jackknife

LATE_SHARE = 0.01
"""The share of requests that may be late: 1 - 0.99."""

_FIRST_SHARE = 0.7
_LEAST_SHARE = 0.02
"""Of what a closed loop gave: where the first round begins, and below which no rate is tried."""
_FIRST_STEP, _FURTHER_STEP = 1.4, 1.1
_MOST_DOUBLINGS = 1
"""Steps in one direction double this often; more could ask the generator for many times what it can send."""
_FINE = 1.12
"""The ratio of a range's ends from which on it is not halved."""
MOST_RUNS = 8
"""Of one round."""
_EXPECTED_RUNS = 6, 3
"""What the first round takes, and what each further one takes, about."""
_FEWEST_REQUESTS = 500
_LIMITS = 50
"""A run is this many limits long: a rate 2 % above what the server can answer makes requests late in it."""
_LONGER = 4
"""How many times longer than usual a run may be to have enough requests."""


class Trial(NamedTuple):
    """A run at a rate."""

    rate: float
    """Requests a second."""
    requests: int
    late: int
    """Requests that took longer than the limit, or failed."""

    @property
    def holds(self) -> bool:
        """Return whether its p99 is within the limit."""
        return self.late <= LATE_SHARE * self.requests


@dataclass(frozen=True, kw_only=True)
class SearchRound:
    """One search: where it begins, and its runs so far."""

    start: float
    """The first rate."""
    step: float
    """The ratio of the first two rates."""
    least: float
    """The lowest rate that is tried."""
    trials: Sequence[Trial] = ()
    stopped: bool = False
    """Whether the next rate could not be measured."""

    @classmethod
    def after(
        cls,
        rounds: "Sequence[SearchRound]",
        closed: float,
        seed: str,
        trials: Sequence[Trial],
        *,
        stopped: bool = False,
    ) -> "SearchRound":
        """Return a round with the runs that it has.

        Args:
            rounds: Those before it.
            closed: Requests a second that a closed loop gave.
            seed: Chooses the place where it begins.
            trials: Its valid runs so far.
            stopped: Whether the next rate could not be measured.
        """
        least = _LEAST_SHARE * closed
        found = [one.range.value for one in rounds if one.range]
        step = _FURTHER_STEP if found else _FIRST_STEP
        about = median(found) if found else _FIRST_SHARE * closed
        place = random.Random(seed).uniform(-0.5, 0.5)  # noqa: S311 - a place, no secret
        start = max(least, about * step**place)
        return cls(start=start, step=step, least=least, trials=trials, stopped=stopped)

    @property
    def held(self) -> float | None:
        """Return the highest rate that held."""
        return max((one.rate for one in self.trials if one.holds), default=None)

    @property
    def failed(self) -> float | None:
        """Return the lowest rate that did not hold."""
        return min((one.rate for one in self.trials if not one.holds), default=None)

    @property
    def next_rate(self) -> float | None:
        """Return the rate to try next, or None where the round is complete."""
        held, failed = self.held, self.failed
        if len(self.trials) >= MOST_RUNS:
            return None
        if held and failed:
            return None if failed <= _FINE * held else math.sqrt(held * failed)
        factor = math.pow(self.step, 2 ** min(len(self.trials) - 1, _MOST_DOUBLINGS))
        if held:
            return held * factor
        if failed:
            return None if failed <= self.least else max(self.least, failed / factor)
        return self.start

    @property
    def range(self) -> Interval | None:
        """Return between which rates the capacity is, as far as the round says; None where it does not."""
        held, failed = self.held, self.failed
        if held and failed and (self.stopped or self.next_rate is None):
            return Interval(value=math.sqrt(held * failed), low=held, high=failed)
        if held and (self.stopped or self.next_rate is None):
            return Interval(value=held, low=held, high=math.inf)
        if failed and failed <= self.least:
            return Interval(value=0.0, low=0.0, high=failed)
        return None


def capacity_of(rounds: Sequence[SearchRound]) -> Interval | None:
    """Return the capacity that rounds have found, with its interval; None for fewer than three.

    Rounds that say nothing do not count.
    """
    ranges = [found for one in rounds if (found := one.range)]
    if len(ranges) < FEWEST_BLOCKS:
        return None
    if any(not one.low or math.isinf(one.high) for one in ranges):
        return Interval(
            value=median(one.value for one in ranges),
            low=min(one.low for one in ranges),
            high=max(one.high for one in ranges),
        )
    trials = [one.trials for one in rounds if one.range]
    found = jackknife(trials, _log_capacity)
    rates = [one.rate for each in trials for one in each]
    if found.value > (most := max(rates)):
        return Interval(value=most, low=min(found.low, most), high=math.inf)
    if found.value < (least := min(rates)):
        return Interval(value=least, low=found.low, high=max(found.high, least))
    return found


def _log_capacity(rounds: Sequence[Sequence[Trial]]) -> float:
    """Return the logarithm of the rate at which 1 % of the requests are late, by maximum likelihood.

    It may be beyond the rates that were tried: cut off there, rounds would seem to agree.
    """
    rates, requests, late = np.array([one for trials in rounds for one in trials], float).T
    places = np.log(rates)
    holds = late <= LATE_SHARE * requests
    middle = (places[holds].max() + places[~holds].min()) / 2

    def cost(at: NDArray[np.float64]) -> float:
        """Return the negative logarithm of the likelihood, which is convex."""
        hazard = np.exp(np.clip(at[0] + at[1] * (places - middle), -50, 5))
        return float((requests - late) @ hazard - late @ np.log(-np.expm1(-hazard)))

    # From where lateness has little to do with the rate to where that is a wall.
    bounds = [(-50, 5), (1, 1000)]
    precise = {"xatol": 1e-3, "fatol": 1e-3}
    level, slope = minimize(cost, [-4, 10], bounds=bounds, method="Nelder-Mead", options=precise).x
    return float(middle + (math.log(-math.log1p(-LATE_SHARE)) - level) / slope)


def run_seconds(rate: float, limit: float, seconds: float) -> float:
    """Return how long a run takes: at least `seconds`, one request, and until a queue has grown.

    Args:
        rate: Requests a second.
        limit: On p99, in seconds.
        seconds: Of a run in which requests are many and the limit is short.
    """
    return max(seconds, 1 / rate, _LIMITS * limit, min(_FEWEST_REQUESTS / rate, _LONGER * seconds))


def expected_runs(number: int) -> int:
    """Return about how many runs a round takes, by its number from 1."""
    return _EXPECTED_RUNS[number > 1]
