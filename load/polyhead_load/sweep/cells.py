"""List the cells of a sweep, and the plan of each run."""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

from polyhead_client.options import OPEN_ACCESS, Access
from polyhead_load.load_plan import Lengths, LoadPlan
from polyhead_load.outputs import Outputs
from polyhead_load.sweep.folder import Measurement
from polyhead_load.sweep.loads import parse_load
from polyhead_load.sweep.search import SearchRound, Trial, run_seconds
from polyhead_load.sweep.spec import DIMENSIONS, Dimension, Sweep

THROUGHPUT = "throughput"
"""The load that measures how much a configuration can answer, whatever it takes."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What is requested from which family."""

    family: str
    tokens: int | Lengths
    batch: int
    outputs: Outputs

    @property
    def labels(self) -> Mapping[Dimension, str]:
        """Return each dimension's value, as people read it."""
        return {name: str(getattr(self, name)) for name in DIMENSIONS}

    @property
    def key(self) -> tuple[str, ...]:
        """Return the labels alone."""
        return tuple(self.labels.values())

    def __str__(self) -> str:
        family, tokens, batch, outputs = self.key
        return f"{family}, T {tokens}, B {batch}, outputs {outputs}"


@dataclass(frozen=True, kw_only=True)
class SweepCell:
    """A configuration under a load."""

    configuration: Configuration
    load: str

    @property
    def family(self) -> str:
        """Return the family that is called."""
        return self.configuration.family

    def __str__(self) -> str:
        return f"{self.configuration}, {self.load}"


@dataclass(frozen=True, kw_only=True)
class CellRun:
    """One attempt to measure a cell."""

    cell: SweepCell
    block: int
    attempt: int

    def measurement(self, started: str, **found: object) -> Measurement:
        """Return the run's line of the journal."""
        return Measurement.model_validate(
            {
                **self.cell.configuration.labels,
                "load": self.cell.load,
                "block": self.block,
                "attempt": self.attempt,
                "started": started,
                **found,
            }
        )

    @property
    def records(self) -> str:
        """Return the name of the file for its requests."""
        number = zlib.crc32(str(self.cell).encode())
        return f"records/{self.block:02d}-{number:08x}-{self.attempt}.npz"


def configurations(sweep: Sweep) -> list[Configuration]:
    """Return all configurations of a sweep, in the order of its file."""
    return [
        Configuration(family=family, tokens=tokens, batch=batch, outputs=outputs)
        for family, tokens, batch, outputs in product(
            sweep.families, sweep.tokens, sweep.batch, sweep.outputs
        )
    ]


def cells(sweep: Sweep) -> Iterator[SweepCell]:
    """Yield all cells of a sweep, after the throughputs where a load is a share of them."""
    every = configurations(sweep)
    if sweep.target or any(map(needs_throughput, sweep.loads)):
        yield from (SweepCell(configuration=each, load=THROUGHPUT) for each in every)
    yield from (SweepCell(configuration=each, load=load) for each, load in product(every, sweep.loads))


def searches(sweep: Sweep) -> list[SweepCell]:
    """Return the cells whose rate is searched, one for each configuration; none without a target."""
    if sweep.target is None:
        return []
    return [SweepCell(configuration=each, load=sweep.target.load) for each in configurations(sweep)]


def plan_of(
    cell: SweepCell,
    sweep: Sweep,
    *,
    address: str,
    rate: float | None,
    block: int,
    access: Access = OPEN_ACCESS,
) -> LoadPlan:
    """Return the generator's plan for one run of the cell."""
    configuration = cell.configuration
    load, seconds = parse_load(cell.load), sweep.seconds
    if load.kind == "p99" and rate is not None:
        seconds = run_seconds(rate, load.value, sweep.search_seconds)
    return LoadPlan(
        address=address,
        access=access,
        model=configuration.family,
        outputs=configuration.outputs,
        batch=configuration.batch,
        tokens=configuration.tokens,
        mode="closed" if rate is None else "open",
        users=sweep.throughput_users if cell.load == THROUGHPUT else 1,
        rate=rate,
        seconds=seconds,
        warm_up_seconds=sweep.warm_up_seconds,
        seed=_seed(cell, sweep, block),
        # More than can be in flight: by then the first of them have passed their deadline.
        max_in_flight=max(sweep.max_in_flight, math.ceil((rate or 0) * sweep.timeout_seconds)),
        timeout_seconds=sweep.timeout_seconds,
    )


def comparison(configuration: Configuration, sweep: Sweep) -> str:
    """Name the configurations that differ only in what is compared."""
    labels = configuration.labels
    return ", ".join(f"{name} {labels[name]}" for name in labels if name not in sweep.compared)


def _seed(cell: SweepCell, sweep: Sweep, block: int) -> int:
    """Return one seed for all that are compared: they get the same arrivals and lengths."""
    same = comparison(cell.configuration, sweep)
    return zlib.crc32("\n".join([str(sweep.seed), str(block), cell.load, same]).encode())


def throughputs_of(measurements: Sequence[Measurement]) -> dict[tuple[str, ...], float]:
    """Map each configuration to the median of its throughputs, in requests a second."""
    found: dict[tuple[str, ...], list[float]] = {}
    for one in measurements:
        if one.block == 0 and one.settled and one.achieved:
            found.setdefault(one.configuration, []).append(one.achieved)
    return {configuration: median(values) for configuration, values in found.items()}


def needs_throughput(load: str) -> bool:
    """Return whether a load's rate follows from the configuration's throughput."""
    return parse_load(load).kind in {"share", "p99"}


def search_rounds(runs: Sequence[Measurement], count: int, closed: float) -> list[SearchRound]:
    """Return the rounds of a search, with the runs that they have.

    Args:
        runs: Of the cell whose rate is searched, void ones included.
        count: Of rounds.
        closed: Requests a second that a closed loop gave.
    """
    rounds: list[SearchRound] = []
    for number in range(1, count + 1):
        own = [one for one in runs if one.block == number]
        trials = [
            Trial(one.rate, one.requests, one.late)
            for one in own
            if not one.void and one.rate is not None and one.late is not None
        ]
        stopped = bool(own and own[-1].saturated)
        rounds.append(SearchRound.after(rounds, closed, f"{closed} {number}", trials, stopped=stopped))
    return rounds
