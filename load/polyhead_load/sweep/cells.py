"""The cells of a sweep, and the plan of each run."""

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from polyhead_client.options import OPEN_ACCESS, Access
from polyhead_load.plan import Lengths, Plan
from polyhead_load.sweep.spec import Attention, Dimension, Sweep, length_label, parse_load

CAPACITY = "capacity"
"""The load that says how much a configuration can answer; loads that are shares of it come after."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What is asked of whom."""

    family: str
    tokens: int | Lengths
    batch: int
    attention: Attention

    @property
    def labels(self) -> Mapping[Dimension, str]:
        """Each dimension's value, as people read it."""
        return {
            "family": self.family,
            "tokens": length_label(self.tokens),
            "batch": str(self.batch),
            "attention": self.attention.name,
        }

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The labels alone."""
        labels = self.labels
        return labels["family"], labels["tokens"], labels["batch"], labels["attention"]

    def __str__(self) -> str:
        labels = self.labels
        return (
            f"{labels['family']}, T {labels['tokens']}, B {labels['batch']}, attention {labels['attention']}"
        )


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A configuration under a load."""

    configuration: Configuration
    load: str

    def __str__(self) -> str:
        return f"{self.configuration}, {self.load}"


def configurations(sweep: Sweep) -> list[Configuration]:
    """Return all of a sweep, in the order of its file."""
    return [
        Configuration(family=family, tokens=tokens, batch=batch, attention=attention)
        for family, tokens, batch, attention in product(
            sweep.families, sweep.tokens, sweep.batch, sweep.attention
        )
    ]


def cells(sweep: Sweep) -> Iterator[Cell]:
    """Yield all of a sweep; the capacities, where a load needs them, first."""
    if needs_capacity(sweep):
        for configuration in configurations(sweep):
            yield Cell(configuration=configuration, load=CAPACITY)
    for configuration, load in product(configurations(sweep), sweep.loads):
        yield Cell(configuration=configuration, load=load)


def needs_capacity(sweep: Sweep) -> bool:
    """Return whether a load is a share of what the configurations can answer."""
    return any(parse_load(load).kind in {"share", "common"} for load in sweep.loads)


def plan_of(
    cell: Cell,
    sweep: Sweep,
    *,
    address: str,
    rate: float | None,
    block: int,
    access: Access = OPEN_ACCESS,
) -> Plan:
    """Return what the generator is to do for one run of the cell."""
    configuration = cell.configuration
    asked = configuration.attention
    users = sweep.capacity_users if cell.load == CAPACITY else 1
    return Plan(
        address=address,
        access=access,
        model=configuration.family,
        attention=list(asked.layers) if isinstance(asked.layers, tuple) else asked.layers,
        heads=asked.heads,
        queries=asked.queries,
        dtype=asked.dtype,
        batch=configuration.batch,
        tokens=configuration.tokens,
        mode="closed" if rate is None else "open",
        users=users,
        rate=rate,
        seconds=sweep.seconds,
        # The server is warm already; this is for the generator's connection, and to fill the queue.
        warm_up_seconds=max(0.2, 0.15 * sweep.seconds),
        seed=_seed(cell, sweep, block),
        max_in_flight=_most_in_flight(sweep, rate),
        timeout_seconds=sweep.timeout_seconds,
    )


def _most_in_flight(sweep: Sweep, rate: float | None) -> int:
    """Return more than can be in flight: by then the first of them have failed for want of an answer."""
    return max(sweep.max_in_flight, math.ceil((rate or 0) * sweep.timeout_seconds))


def comparison(configuration: Configuration, sweep: Sweep) -> str:
    """Name those that differ from this one in nothing but what is compared: they share the common rate."""
    compared, labels = sweep.compared, configuration.labels
    return ", ".join(f"{name} {labels[name]}" for name in labels if name not in compared)


def _seed(cell: Cell, sweep: Sweep, block: int) -> int:
    """Return one seed for all that are compared, so that they get the same arrivals and lengths."""
    labels = cell.configuration.labels
    same = [labels[dimension] for dimension in labels if dimension not in sweep.compared]
    seeds = [str(sweep.seed), str(sweep.arrivals), str(block)]
    return zlib.crc32("\n".join([*seeds, cell.load, *same]).encode())
