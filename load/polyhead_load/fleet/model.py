"""Predict what a machine of the measured kind does with requests of some lengths, at any rate.

Shape letters: B batch, T tokens.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from polyhead_load.errors import SweepError
from polyhead_load.fleet.machine import Machine, Outcome, Simulation
from polyhead_load.fleet.measured import LoadPoint, Measured, typical_lengths
from polyhead_load.load_plan import Lengths
from polyhead_load.sweep.intervals import Interval, typical_quantile
from polyhead_server.scheduling.costs import Size

_REPEATS = 4
"""Independent simulations of one rate; how their p99s differ gives its interval."""
_REQUESTS = 2000
"""Requests of each."""
ALONE = 0.001
"""Share of the capacity at which hardly any request meets another; less is simulated as this much."""
_LEVEL, _MEETING = 0, 2
"""Power of the share with which a correction's logarithm grows."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a machine does at a rate. Times are in seconds."""

    rate: float
    """Requests a second."""
    share: float
    """Of the machine's capacity."""
    p50: float
    p99: Interval
    """The interval is that of the simulation alone."""
    wait: float
    """Mean time in the queue, of the simulation alone."""
    run: float
    """Mean time of a request's run, likewise."""
    mean: float
    """Mean latency, likewise."""


@dataclass(frozen=True, kw_only=True)
class Correction:
    """A measured point beside the bare simulation."""

    point: LoadPoint
    share: float
    """Of the capacity at this T."""
    p50: float
    """Measured p50 by simulated p50."""
    p99: float
    """Measured p99 by simulated p99."""


@dataclass(frozen=True, kw_only=True)
class MachineModel:
    """A simulated machine, corrected by what a sweep measured.

    p50 and p99 are those of the simulation, times a factor from the ratios of measured to simulated values
    in the sweep's own open loops: one at each T, and between two T their weighted mean. That of p50 is the
    same at every rate. That of p99 is 1 for lone requests, which the simulation draws as they were measured,
    and its logarithm grows with the square of the share of the capacity.
    """

    machine: Machine
    batch: int
    lengths: Sequence[int]
    """From which to draw T."""
    capacity: float
    """Requests a second that the sweep's number of callers would get answered."""
    weights: Mapping[int, float]
    """The measured T next to these lengths → how much it counts."""
    corrections: Sequence[Correction]
    seed: int

    @classmethod
    def fit(cls, measured: Measured, tokens: int | Lengths, *, seed: int = 0) -> "MachineModel":
        """Fit a model.

        Args:
            measured: What a sweep has measured.
            tokens: T, or how lengths are distributed.
            seed: The same seed gives the same numbers.

        Raises:
            SweepError: Lengths are outside those that were measured.
        """
        known = list(measured.capacities)
        lengths = known if measured.mixture is not None else typical_lengths(tokens, seed)
        if min(lengths) < known[0] or max(lengths) > known[-1]:
            span = f"{known[0]} to {known[-1]}" if len(known) > 1 else f"{known[0]} alone"
            was = f"{min(lengths)} to {max(lengths)}" if len(lengths) > 1 else f"{lengths[0]}"
            raise SweepError(
                f"--tokens must be within the lengths that the sweep measured, T = {span}, was {was}: costs "
                "are not extrapolated; sweep with these lengths, too"
            )
        weights = _weights(float(np.mean(lengths)), known)
        at = {length: _at_length(measured, length, seed) for length in weights}
        gap = sum(weight * at[length].gap for length, weight in weights.items())
        machine = replace(measured.machine, gap=gap)
        size = _sizes(measured.batch, lengths)
        capacity = Simulation(machine, size, seed=seed).capacity(measured.callers, _REPEATS * _REQUESTS)
        return cls(
            machine=machine,
            batch=measured.batch,
            lengths=lengths,
            capacity=capacity,
            weights=weights,
            corrections=[
                _correct(at[point.tokens], point, measured, seed)
                for point in measured.points
                if point.tokens in at
            ],
            seed=seed,
        )

    def predict(self, rate: float) -> Prediction:
        """Predict what a machine does at a rate, in requests a second."""
        # At far lower rates, arrival times would be so large that floating point loses the latencies.
        simulated = max(rate, ALONE * self.capacity)
        outcomes = _simulate(self.machine, _sizes(self.batch, self.lengths), simulated, self.seed)
        share = simulated / self.capacity
        p50, p99 = (_quantile(outcomes, each) for each in (0.5, 0.99))
        return Prediction(
            rate=rate,
            share=rate / self.capacity,
            p50=p50.value * self._factor(share, lambda one: one.p50, _LEVEL),
            p99=p99.times(self._factor(share, lambda one: one.p99, _MEETING)),
            wait=fmean(float(one.wait.mean()) for one in outcomes),
            run=fmean(float(one.run.mean()) for one in outcomes),
            mean=fmean(float(one.latency.mean()) for one in outcomes),
        )

    def without(self, point: LoadPoint) -> "MachineModel":
        """Return this model as if a point had not been measured."""
        return replace(self, corrections=[one for one in self.corrections if one.point != point])

    def checks(self) -> Mapping[LoadPoint, float | None]:
        """Return, for each measured point, its predicted p99 by its measured p99 if it had not been measured.

        None where no other point of its T was.
        """
        return {
            one.point: None if factor is None else factor / one.p99
            for one in self.corrections
            for others in [self.without(one.point)]
            for factor in [others._factor_at(one.point.tokens, one.share, lambda it: it.p99, _MEETING)]
        }

    def _factor(self, share: float, ratio: Callable[[Correction], float], power: int) -> float:
        known = {
            length: factor
            for length in self.weights
            if (factor := self._factor_at(length, share, ratio, power)) is not None
        }
        total = sum(self.weights[length] for length in known)
        if not total:
            return 1.0
        return math.exp(sum(self.weights[each] * math.log(factor) for each, factor in known.items()) / total)

    def _factor_at(
        self, tokens: int, share: float, ratio: Callable[[Correction], float], power: int
    ) -> float | None:
        """Return the factor of one T, which beyond the points' highest share is as there."""
        known = [(one.share, math.log(ratio(one))) for one in self.corrections if one.point.tokens == tokens]
        if not known:
            return None
        shares, logs = np.array(known).T
        grown = shares**power
        slope = float(grown @ logs / (grown @ grown))
        return math.exp(slope * min(share, float(shares.max())) ** power)


def _weights(tokens: float, known: Sequence[int]) -> Mapping[int, float]:
    """Return the measured lengths next to T, and how near they are by their logarithms."""
    below = max(length for length in known if length <= tokens)
    above = min(length for length in known if length >= tokens)
    if below == above:
        return {below: 1.0}
    share = math.log(tokens / below) / math.log(above / below)
    return {below: 1 - share, above: share}


def _sizes(batch: int, lengths: Sequence[int]) -> Callable[[random.Random], Size]:
    return lambda chance: Size.full(batch, chance.choice(lengths))


def _at_length(measured: Measured, tokens: int, seed: int) -> Machine:
    """Return the machine with the gap that its capacity at T implies."""
    return measured.machine.with_capacity(
        measured.capacities[tokens],
        callers=measured.callers,
        size=_sizes(measured.batch, [tokens]),
        requests=_REQUESTS,
        seed=seed,
    )


def _correct(machine: Machine, point: LoadPoint, measured: Measured, seed: int) -> Correction:
    outcomes = _simulate(machine, _sizes(measured.batch, [point.tokens]), point.rate, seed)
    return Correction(
        point=point,
        share=point.rate / measured.capacities[point.tokens],
        p50=point.p50.value / _quantile(outcomes, 0.5).value,
        p99=point.p99.value / _quantile(outcomes, 0.99).value,
    )


def _simulate(
    machine: Machine, size: Callable[[random.Random], Size], rate: float, seed: int
) -> Sequence[Outcome]:
    seeds = [_REPEATS * seed + number for number in range(_REPEATS)]
    return [Simulation(machine, size, seed=each).open_loop(rate, _REQUESTS) for each in seeds]


def _quantile(outcomes: Sequence[Outcome], share: float) -> Interval:
    found = typical_quantile([one.latency for one in outcomes], share)
    if found is None:
        raise AssertionError("a simulation has enough requests for its quantiles")
    return found
