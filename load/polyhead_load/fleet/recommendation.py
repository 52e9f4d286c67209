"""Choose a configuration: which carry a rate within a limit on p99, with what headroom, and at what price."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any, Literal

from polyhead_load.errors import SweepError
from polyhead_load.fleet.measured import Measured, read_measured
from polyhead_load.fleet.model import MachineModel
from polyhead_load.fleet.report import FleetPlan
from polyhead_load.fleet.sizing import MOST_SHARE, TooSlowError, size_fleet
from polyhead_load.load_plan import Lengths
from polyhead_load.report.findings import capacity_of
from polyhead_load.report.formatting import count, described, number
from polyhead_load.sweep.cells import CAPACITY
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.intervals import Interval
from polyhead_load.sweep.spec import DIMENSIONS, Dimension, ServiceTarget, length_label, near

CLOSE = 1.25
"""A quarter: rates that were planned for real servers were wrong by up to that (docs/scaling.md)."""

_WORKLOAD: tuple[Dimension, ...] = ("tokens", "batch")
"""Given by the callers; configurations are compared within each."""

Verdict = Literal["holds", "close", "no", "never", "unknown", ""]
"""On one machine: holds the target; is too close to it to tell; does not; does not at any rate. Unknown: what
a prediction needs was not measured. Empty: there is no target."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A configuration that one may choose."""

    labels: Mapping[Dimension, str]
    capacity: float | None
    """Requests a second that a machine can answer, whatever they take."""
    capacity_interval: Interval | None
    """None for fewer than three runs."""
    parameters: int | None
    reply_bytes: float | None
    """Mean size of a reply; None where these lengths were not measured themselves."""
    plan: FleetPlan | None = None
    """The machines that carry the target; None without one, or where none can."""
    error: SweepError | None = None
    """Why there is no plan."""

    @property
    def headroom(self) -> float | None:
        """Return the largest rate that a machine carries within the limit, by the target's rate."""
        return None if self.plan is None else self.plan.fleet.most.rate / self.plan.fleet.rate

    @property
    def verdict(self) -> Verdict:
        """Return whether one machine holds the target."""
        if self.headroom is None:
            never = isinstance(self.error, TooSlowError)
            return "never" if never else "unknown" if self.error else ""
        # A machine whose capacity changed between runs may be the slower one.
        interval = self.capacity_interval
        margin = max(CLOSE, interval.value / interval.low if interval else 1.0)
        if self.headroom >= margin:
            return "holds"
        return "close" if self.headroom * margin >= 1 else "no"

    def facts(self) -> dict[str, Any]:
        """Return the option as JSON values; times are in seconds."""
        return {
            **{str(name): label for name, label in self.labels.items()},
            "capacity_per_second": self.capacity,
            "capacity_interval": None if self.capacity_interval is None else self.capacity_interval.facts(),
            "parameters": self.parameters,
            "reply_bytes": self.reply_bytes,
            "verdict": self.verdict,
            "headroom": self.headroom,
            "machines": None if self.plan is None else self.plan.fleet.machines,
            "most": None if self.plan is None else asdict(self.plan.fleet.most),
            "usual": None if self.plan is None else asdict(self.plan.fleet.usual),
            "price_an_hour": None if self.plan is None else self.plan.an_hour,
            "why": None if self.error is None else str(self.error),
        }


def choose(
    folder: RunFolder,
    target: ServiceTarget | None,
    *,
    tokens: int | Lengths | None = None,
    family: str | None = None,
    batch: int | None = None,
    attention: str | None = None,
    most_share: float = MOST_SHARE,
    spare: int = 0,
    price: float | None = None,
    seed: int = 0,
    on_step: Callable[[str], None] = lambda _: None,
) -> list[Option]:
    """Work out what each configuration of a sweep takes to carry a target.

    Args:
        folder: A sweep's run.
        target: None says only what configurations cost.
        tokens: Lengths of the requests. Default: each of the sweep's.
        family: The only family to look at.
        batch: The only B.
        attention: The only attention that is asked for.
        most_share: The largest share of its capacity that a machine is given, from 0 to 1.
        spare: Machines that may fail while the limit is kept.
        price: Of a machine for an hour.
        seed: Of the simulation.
        on_step: Called with a few words before each configuration, which takes seconds.

    Returns:
        By T and B in the sweep's order, and of each those with the most headroom first, and last those that
        cannot carry it.

    Raises:
        SweepError: It is no run's folder, or has no such configuration.
    """
    sweep, facts = folder.read()
    wanted: dict[Dimension, str | None] = {
        "family": family,
        "batch": None if batch is None else str(batch),
        "attention": attention,
    }
    for name, label in wanted.items():
        known = sweep.labels(name)
        if label is not None and label not in known:
            raise SweepError(f"--{name} must be one of {', '.join(known)}, was {label!r}{near(label, known)}")
    lengths = {length_label(each): each for each in (sweep.tokens if tokens is None else [tokens])}
    measurements = folder.journal().measurements
    families = facts.get("families", {})

    @cache
    def measured(family: str, batch: str, attention: str, mixture: Lengths | None) -> Measured:
        return read_measured(folder, family=family, batch=int(batch), attention=attention, tokens=mixture)

    def planned(labels: Mapping[Dimension, str]) -> FleetPlan | SweepError | None:
        if target is None:
            return None
        on_step(f"simulating {', '.join(labels.values())}")
        at = lengths[labels["tokens"]]
        mixture = at if isinstance(at, Lengths) else None
        try:
            found = measured(labels["family"], labels["batch"], labels["attention"], mixture)
            model = MachineModel.fit(found, at, seed=seed)
            fleet = size_fleet(model, rate=target.rate, p99=target.limit, most_share=most_share, spare=spare)
        except SweepError as error:
            return error
        return FleetPlan(measured=found, model=model, fleet=fleet, tokens=at, price=price)

    def option(labels: Mapping[Dimension, str]) -> Option:
        runs = [one for one in measurements if not one.void and one.configuration == tuple(labels.values())]
        sizes = [one.reply_bytes for one in runs if one.reply_bytes is not None]
        capacity = capacity_of([one for one in runs if one.load == CAPACITY])
        plan = planned(labels)
        modelled = plan.model.capacity if isinstance(plan, FleetPlan) else None
        return Option(
            labels=labels,
            capacity=capacity.value if capacity else modelled,
            capacity_interval=capacity.interval if capacity else None,
            parameters=families.get(labels["family"], {}).get("parameters"),
            reply_bytes=fmean(sizes) if sizes else None,
            plan=plan if isinstance(plan, FleetPlan) else None,
            error=plan if isinstance(plan, SweepError) else None,
        )

    values = {name: [label] if (label := wanted.get(name)) else sweep.labels(name) for name in DIMENSIONS}
    values["tokens"] = list(lengths)
    options = [
        option(dict(zip(DIMENSIONS, labels, strict=True)))
        for labels in product(*(values[name] for name in DIMENSIONS))
    ]
    return sorted(
        options,
        key=lambda one: (
            *(values[name].index(one.labels[name]) for name in _WORKLOAD),
            -(one.headroom or 0.0),
        ),
    )


def recommendations(
    options: Sequence[Option], varied: Sequence[Dimension], target: ServiceTarget
) -> Iterator[str]:
    """Yield in a few sentences which options hold the target, for each kind of requests."""
    asked = [name for name in varied if name in _WORKLOAD]
    chosen = [name for name in varied if name not in asked]
    for labels in dict.fromkeys(tuple(one.labels[name] for name in asked) for one in options):
        same = [one for one in options if tuple(one.labels[name] for name in asked) == labels]
        where = ", ".join(described(*each) for each in zip(asked, labels, strict=True))
        yield f"{where}{': ' if where else ''}{_recommendation(same, chosen, target)}"


def _recommendation(options: Sequence[Option], varied: Sequence[Dimension], target: ServiceTarget) -> str:
    def name(one: Option) -> str:
        return ", ".join(described(dimension, one.labels[dimension]) for dimension in varied)

    holding = [one for one in options if one.verdict == "holds"]
    planned = [one for one in options if one.plan]
    said = [f"{len(holding)} of {len(options)} hold {target}, on one machine."]
    if len(options) == 1:
        said = [f"A machine carries {number(planned[0].headroom)} × {target}."] if planned else []
    elif holding:
        said.append(f"Most headroom: {name(holding[0])}, {number(holding[0].headroom)} × the rate.")
        largest = max(holding, key=lambda one: one.parameters or 0)
        if any(one.parameters != largest.parameters for one in holding):
            said.append(f"The largest of them: {name(largest)}, {count(largest.parameters)} parameters.")
    elif planned and (plan := planned[0].plan):
        machines = plan.fleet.machines
        said.append(
            f"The nearest: {name(planned[0])}, {number(planned[0].headroom)} × the rate on one, so plan for "
            f"{machines + (machines == 1):,}."
        )
    for verdict, what in (
        ("close", "too close to tell"),
        ("no", "only with more machines"),
        ("never", "not at any rate"),
        ("unknown", "not known"),
    ):
        if found := sum(one.verdict == verdict for one in options):
            said.append(f"{what.capitalize()}{f': {found}' if len(options) > 1 else ''}.")
    return " ".join(said)
