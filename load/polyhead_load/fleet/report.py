"""Say and draw what a plan is, and what it rests on."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from polyhead_load.fleet.measured import Measured
from polyhead_load.fleet.model import MachineModel, Prediction
from polyhead_load.fleet.sizing import Fleet
from polyhead_load.load_plan import Lengths
from polyhead_load.report.formatting import number, percent, spread
from polyhead_load.report.plots import STYLE, Plot
from polyhead_load.sweep.spec import length_label

_FAR = 0.3
"""How far p99 may be from its prediction before the plan warns."""
_FAR_LOG = math.log(1 + _FAR)
_BEYOND = 0.05
"""How far, as a share of the capacity, a plan may go beyond what was measured without a warning."""
_CALLERS = 2
"""Callers for each lane that keep it busy."""
_DRAWN_RATES = 12


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """A fleet, and what it was worked out from."""

    measured: Measured
    model: MachineModel
    fleet: Fleet
    tokens: int | Lengths
    price: float | None = None
    """For a machine and hour."""

    @property
    def an_hour(self) -> float | None:
        """Return the price of the fleet for an hour."""
        return None if self.price is None else self.price * self.fleet.machines

    @property
    def a_million(self) -> float | None:
        """Return the price of a million requests."""
        return None if self.an_hour is None else self.an_hour / (3600 * self.fleet.rate) * 1e6

    def lines(self) -> Iterator[str]:
        """Yield the plan in sentences."""
        fleet, usual = self.fleet, self.fleet.usual
        spare = f", of which {fleet.spare} may fail" if fleet.spare else ""
        yield (
            f"{fleet.machines:,} {_machines(fleet.machines)}{spare}: {number(fleet.rate)} requests/s, "
            f"99 of 100 within {_ms(fleet.p99)} ({self.what})"
        )
        yield f"each has {_describe(usual)}"
        if fleet.spare:
            yield f"if {fleet.spare} failed, each has {_describe(fleet.worst)}"
        yield (
            f"simulated, before any correction: a mean latency of {_ms(usual.mean)}, {_ms(usual.wait)} of it "
            f"in the queue, {_ms(usual.run)} in the run, the rest in transport, parsing and serialising"
        )
        yield (
            f"a machine can have {number(fleet.most.rate)} requests/s ({percent(fleet.most.share)} of its "
            f"capacity, {number(self.model.capacity)}), limited by {fleet.limited_by}"
        )
        if self.an_hour is not None and self.a_million is not None:
            yield f"cost: {number(self.an_hour)} an hour, {number(self.a_million)} for a million requests"
        yield "\nwhat this rests on:"
        yield from (f"- {each}" for each in self.basis())
        yield from (f"warning: {each}" for each in self.warnings())

    @property
    def what(self) -> str:
        """Return what is requested, in words."""
        measured = self.measured
        return (
            f"{measured.family}, T {length_label(self.tokens)}, B {measured.batch}, "
            f"attention {measured.attention}"
        )

    def basis(self) -> Iterator[str]:
        """Yield what was assumed, and how far measured points are from their prediction."""
        measured = self.measured
        side_by_side = f"{measured.machine.lanes} runs side by side"
        if not measured.own_server:
            yield f"machines like what the sweep called, of which it knows no more than {side_by_side}"
        else:
            yield f"machines like the sweep's: {measured.processor}, {side_by_side}"
            yield "the sweep's generator ran on the same machine; a server that has it for itself can do more"
        yield "many independent callers: Poisson arrivals at each machine, spread evenly (round_robin)"
        yield "no other families on the machines, no rejected or repeated requests, no network between"
        if not self.fleet.spare:
            yield "no machine fails or is taken out for an update: --spare 1 adds one for that"
        yield "the limit is for the expected p99; the upper end of its interval may be above it"
        lengths = " and ".join(str(each) for each in self.model.weights)
        yield f"run times as measured at T = {lengths}, batches as a server with default settings forms them"
        for point, ratio in self.model.checks().items():
            predicted = (
                "no other point to predict it from"
                if ratio is None
                else (f"predicted from the other points: {_ms(ratio * point.p99.value)}")
            )
            yield (
                f"measured at T = {point.tokens}, {point.load} ({number(point.rate)}/s): "
                f"p99 {_ms(point.p99.value)} ({spread(point.p99.times(1e3))}), {predicted}"
            )

    def warnings(self) -> Iterator[str]:
        """Yield why the plan may be wrong."""
        fleet, measured = self.fleet, self.measured
        checks = self.model.checks()
        if not checks:
            yield (
                "no open loop was measured at these lengths, so nothing corrects or checks the simulation: "
                'sweep with such loads as "single,30%,50%,70%,85%"'
            )
        if over := [one for one in (fleet.usual, fleet.worst) if one.p99.value > fleet.p99]:
            yield (
                f"at {number(over[0].rate)} requests/s of a machine, the predicted p99 is "
                f"{_ms(over[0].p99.value)}, above the limit: p99 hardly depends on the rate here, or the "
                "measured points contradict each other; allow more, or measure longer"
            )
        for one in self.model.corrections:
            # Shorter sequences at a lower share: the planned machine cannot be expected to do better.
            lighter = one.point.tokens <= min(self.model.lengths) and one.share <= fleet.usual.share
            if lighter and one.point.p99.low > fleet.p99:
                yield (
                    f"the limit was already missed where it was measured at T = {one.point.tokens}, "
                    f"{one.point.load}: p99 {_ms(one.point.p99.value)}"
                )
        if measured.flags:
            yield (
                f"the sweep's server had the flags {measured.flags}; the simulation has one queue, "
                "and forms batches with default settings"
            )
        if far := [point for point, ratio in checks.items() if ratio and abs(math.log(ratio)) > _FAR_LOG]:
            yield (
                f"{len(far)} of {len(checks)} measured points are more than {_FAR:.0%} from their "
                "prediction: measure longer, on a quiet machine"
            )
        highest = max((one.share for one in self.model.corrections), default=None)
        if highest is not None and fleet.usual.share > highest + _BEYOND:
            yield (
                f"machines have {percent(fleet.usual.share)} of their capacity, and no open loop was "
                f"measured beyond {percent(highest)}: p99 rises steeply there"
            )
        if measured.callers < _CALLERS * measured.machine.lanes:
            yield (
                f"the capacity was measured with {measured.callers} callers, too few to keep "
                f"{measured.machine.lanes} runs busy: sweep with a larger capacity_users"
            )
        yield from (f"not used: {each}" for each in measured.left_out)


def _describe(prediction: Prediction) -> str:
    return (
        f"{number(prediction.rate)} requests/s, {percent(prediction.share)} of its capacity: "
        f"p50 {_ms(prediction.p50)}, p99 {_ms(prediction.p99.value)} ({spread(prediction.p99.times(1e3))})"
    )


def _machines(count: int) -> str:
    return "machine" if count == 1 else "machines"


def _ms(seconds: float) -> str:
    return f"{number(1e3 * seconds)} ms"


def draw_fleet_plan(plan: FleetPlan) -> Plot:
    """Draw latency against the rate of a machine, with the limit and what was measured."""
    model, fleet = plan.model, plan.fleet
    top = max([0.9 * model.capacity, 1.02 * fleet.most.rate])
    predictions = [model.predict(rate) for rate in np.linspace(0.05 * model.capacity, top, _DRAWN_RATES)]
    rates = [each.rate for each in predictions]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axis = figure.subplots()
        axis.plot(rates, [1e3 * each.p50 for each in predictions], color="#0072B2", label="p50")
        axis.plot(rates, [1e3 * each.p99.value for each in predictions], color="#D55E00", label="p99")
        low, high = ([1e3 * getattr(each.p99, end) for each in predictions] for end in ("low", "high"))
        axis.fill_between(rates, low, high, color="#D55E00", alpha=0.18, linewidth=0)
        for tokens, marker in zip(model.weights, "os", strict=False):
            points = [one.point for one in model.corrections if one.point.tokens == tokens]
            for name, colour in (("p50", "#0072B2"), ("p99", "#D55E00")):
                axis.plot(
                    [point.rate for point in points],
                    [1e3 * getattr(point, name).value for point in points],
                    linestyle="",
                    marker=marker,
                    markersize=4.5,
                    color=colour,
                    label=f"measured at T = {tokens}" if name == "p99" else None,
                )
        axis.axhline(1e3 * fleet.p99, color="#555555", linewidth=0.9, linestyle="--", label="limit on p99")
        axis.axvline(fleet.usual.rate, color="#009E73", linewidth=1.2, label="planned rate")
        axis.set(
            title=plan.what,
            xlabel="requests/s of a machine",
            ylabel="latency, ms",
            xlim=(0, None),
            ylim=(0, max(2 * 1e3 * fleet.p99, 2.5e3 * fleet.most.p99.value)),
        )
        axis.legend(loc="upper left")
    return Plot(
        name="plan",
        title="Latency against the rate of a machine",
        caption="Bands are the simulation's own 95 % intervals.",
        figure=figure,
    )
