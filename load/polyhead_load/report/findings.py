"""What a run's measurements come to: one row for each cell."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_load.records import Records
from polyhead_load.sweep.cells import CAPACITY
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.intervals import FEWEST_BLOCKS, Interval, Values, blocks_ratio, pooled_quantile
from polyhead_load.sweep.journal import Measurement
from polyhead_load.sweep.spec import DIMENSIONS, Dimension, Sweep, parse_load

_ECDF_POINTS = 300
_SAME_RATE = 0.01
"""By which the rates of two runs under "the same" load may differ."""


QUANTILES: Mapping[str, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a configuration can answer, in requests a second."""

    value: float
    """The median of its runs."""
    low: float
    high: float
    runs: Sequence[Measurement]

    @classmethod
    def of(cls, runs: Sequence[Measurement]) -> "Capacity | None":
        """Sum up the runs that count; None where none does."""
        counted = [one for one in runs if not one.void and one.achieved]
        values = [one.achieved for one in counted if one.achieved]
        if not values:
            return None
        return cls(value=median(values), low=min(values), high=max(values), runs=counted)

    def facts(self) -> dict[str, float | int]:
        """Return it as JSON values."""
        return {
            "requests_per_second": self.value,
            "low": self.low,
            "high": self.high,
            "runs": len(self.runs),
        }


@dataclass(frozen=True, kw_only=True)
class Row:
    """A cell. Latencies are in milliseconds, from the planned time to the answer."""

    labels: Mapping[Dimension, str]
    load: str
    valid: Sequence[Measurement]
    void: Sequence[Measurement]
    quantiles: Mapping[str, Interval | None]
    """By name; None is too few samples."""
    ratios: Mapping[str, Interval | None] = field(default_factory=dict)
    """To the baseline, of the same blocks; empty where there is nothing to compare with."""
    uncompared: str = ""
    """Why there are no ratios, where there should be."""
    blocks: Mapping[int, Values] = field(default_factory=dict)
    """Block → latencies."""
    send_lag_p99_ms: float | None = None
    """The p99 of the send lag of all requests of an open loop."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Parts of the mean latency; they add up to `total`."""
    ecdf: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """Latencies at equal steps of the share, from 0 to 1."""

    @property
    def key(self) -> tuple[str, ...]:
        """Names the cell."""
        return *self.labels.values(), self.load

    @property
    def requests(self) -> int:
        """Answered, in all valid runs."""
        return sum(one.requests for one in self.valid)

    def mean(self, name: str) -> float | None:
        """Return the mean of a field of the valid runs; None where none has it."""
        values = [value for one in self.valid if (value := getattr(one, name)) is not None]
        return float(np.mean(values)) if values else None

    @property
    def reasons(self) -> Sequence[str]:
        """Why runs are void, each reason once."""
        return list(dict.fromkeys(reason for one in self.void for reason in one.void))

    @property
    def overloaded(self) -> Sequence[Measurement]:
        """The valid runs in which the server did not keep up: they count."""
        return [one for one in self.valid if one.overloaded]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """A run."""

    sweep: Sweep
    facts: Mapping[str, Any]
    rows: Sequence[Row]
    """In the order of the sweep; cells that were skipped have none."""
    capacities: Mapping[tuple[str, ...], Capacity]
    """By configuration."""
    void: Sequence[Measurement]
    """Every void run, capacities included."""

    @property
    def overloaded(self) -> list[Measurement]:
        """Every run in which the server did not keep up, in the order of the rows."""
        return [one for row in self.rows for one in row.overloaded]

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The keys of all cells of the sweep, whether they were measured or not: loads first."""
        labels = list(product(*(self.sweep.labels(dimension) for dimension in DIMENSIONS)))
        return [(*configuration, load) for load in self.sweep.loads for configuration in labels]

    @property
    def missing(self) -> list[tuple[str, ...]]:
        """The cells that have no valid run."""
        measured = {row.key for row in self.rows if row.valid}
        return [key for key in self.cells if key not in measured]

    @property
    def varied(self) -> list[Dimension]:
        """The dimensions that have several values."""
        return [dimension for dimension in DIMENSIONS if len(self.sweep.labels(dimension)) > 1]

    def is_baseline(self, row: Row) -> bool:
        """Return whether the row is one that others are compared with."""
        compared = self.sweep.compared
        return bool(compared) and all(row.labels[name] == value for name, value in compared.items())

    def baseline_of(self, row: Row) -> tuple[str, ...]:
        """Return the key of the cell that a row is compared with."""
        return *{**row.labels, **self.sweep.compared}.values(), row.load


def find(folder: RunFolder) -> Findings:
    """Read a run's folder.

    Raises:
        SweepError: It is none, or its records are damaged or missing.
    """
    sweep, facts = folder.read()
    measurements = folder.journal().measurements
    by_cell: dict[tuple[str, ...], list[Measurement]] = defaultdict(list)
    for one in measurements:
        by_cell[one.cell].append(one)
    alone = {key: _row(of_cell, folder) for key, of_cell in by_cell.items() if key[-1] != CAPACITY}
    capacities = {key[:-1]: Capacity.of(runs) for key, runs in by_cell.items() if key[-1] == CAPACITY}
    findings = Findings(
        sweep=sweep,
        facts=facts,
        rows=(),
        capacities={key: capacity for key, capacity in capacities.items() if capacity is not None},
        void=[one for one in measurements if one.void],
    )
    rows = [
        row
        if findings.is_baseline(row) or not sweep.compared
        else _compared(row, alone.get(findings.baseline_of(row)))
        for row in alone.values()
    ]
    order = {key: place for place, key in enumerate(findings.cells)}
    rows.sort(key=lambda row: order.get(row.key, len(order)))
    return replace(findings, rows=rows)


def _row(of_cell: Sequence[Measurement], folder: RunFolder) -> Row:
    first = of_cell[0]
    valid = sorted((one for one in of_cell if not one.void), key=lambda one: one.block)
    by_block = {one.block: folder.load_records(one.records) for one in valid if one.records}
    records = list(by_block.values())
    latencies = [each.latency_ms for each in records]
    lags = [each.lag_ms for each in records if len(each.lag_ms)] if first.rate is not None else []
    together = np.concatenate(latencies) if latencies else np.empty(0)
    return Row(
        labels={dimension: getattr(first, dimension) for dimension in DIMENSIONS},
        load=first.load,
        valid=valid,
        void=[one for one in of_cell if one.void],
        quantiles={name: pooled_quantile(latencies, share) for name, share in QUANTILES.items()},
        parts=_parts(records),
        blocks={block: each.latency_ms for block, each in by_block.items()},
        send_lag_p99_ms=float(np.quantile(np.concatenate(lags), 0.99)) if lags else None,
        ecdf=np.quantile(together, np.linspace(0, 1, _ECDF_POINTS)) if len(together) else together,
    )


def _parts(records: Sequence[Records]) -> Mapping[str, float]:
    """Return the mean over all requests; without the server's parts where it left one out."""
    found = [(parts, int(each.answered.sum())) for each in records if (parts := each.parts_ms())]
    if not found:
        return {}
    names = [name for name in found[0][0] if all(name in parts for parts, _ in found)]
    weights = [count for _, count in found]
    return {name: float(np.average([parts[name] for parts, _ in found], weights=weights)) for name in names}


def _compared(row: Row, baseline: Row | None) -> Row:
    if not row.valid:
        return row
    if baseline is None or not baseline.valid:
        return replace(row, uncompared="the baseline has no valid run")
    of_baseline = {one.block: one for one in baseline.valid}
    common = [
        one.block
        for one in row.valid
        if (other := of_baseline.get(one.block)) is not None
        and one.block in row.blocks
        and one.block in baseline.blocks
        and _alike(one, other)
    ]
    if len(common) < FEWEST_BLOCKS:
        return replace(row, uncompared=f"too few blocks in common: {len(common)}")
    ours, theirs = ([each.blocks[block] for block in common] for each in (row, baseline))
    return replace(
        row,
        ratios={
            name: blocks_ratio(ours, theirs, share)
            if row.quantiles[name] is not None and baseline.quantiles[name] is not None
            else None
            for name, share in QUANTILES.items()
        },
    )


def _alike(one: Measurement, other: Measurement) -> bool:
    """Return whether two runs under a load that is the same for all had the same rate."""
    if parse_load(one.load).kind not in {"common", "rate"} or not one.rate or not other.rate:
        return True
    return abs(one.rate / other.rate - 1) <= _SAME_RATE
