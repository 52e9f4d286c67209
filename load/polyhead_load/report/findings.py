"""What a run's measurements come to: one row for each cell."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyhead_load.sweep.cells import CAPACITY
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.intervals import Interval, paired_ratio, pooled_quantile
from polyhead_load.sweep.journal import Measurement
from polyhead_load.sweep.records import Records
from polyhead_load.sweep.spec import DIMENSIONS, Dimension, Sweep

QUANTILES: Mapping[str, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}

_ECDF_POINTS = 300


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
    parts: Mapping[str, float] = field(default_factory=dict)
    """Of the mean latency; they add up to `total`."""
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
        """Of a field of the valid runs; None where none has it."""
        values = [value for one in self.valid if (value := getattr(one, name)) is not None]
        return float(np.mean(values)) if values else None

    @property
    def reasons(self) -> Sequence[str]:
        """Why runs are void, each reason once."""
        return list(dict.fromkeys(reason for one in self.void for reason in one.void))


@dataclass(frozen=True, kw_only=True)
class Findings:
    """A run."""

    sweep: Sweep
    facts: Mapping[str, Any]
    rows: Sequence[Row]
    """In the order of the sweep; cells that were skipped have none."""
    capacities: Mapping[tuple[str, ...], float]
    """Configuration → requests a second."""
    void: Sequence[Measurement]
    """Every void run, capacities included."""

    @property
    def varied(self) -> list[Dimension]:
        """The dimensions that have several values."""
        return [dimension for dimension in DIMENSIONS if len(self.sweep.labels(dimension)) > 1]

    def is_baseline(self, row: Row) -> bool:
        """Whether the row is one that others are compared with."""
        compared = self.sweep.compared
        return bool(compared) and all(row.labels[name] == value for name, value in compared.items())

    def baseline_of(self, row: Row) -> tuple[str, ...]:
        """The key of the cell that a row is compared with."""
        return *{**row.labels, **self.sweep.compared}.values(), row.load


def find(folder: RunFolder) -> Findings:
    """Reads a run's folder.

    Raises:
        SweepError: It is none, or its records are damaged or missing.
    """
    sweep, facts = folder.read()
    measurements = folder.journal().measurements
    by_cell: dict[tuple[str, ...], list[Measurement]] = defaultdict(list)
    for one in measurements:
        by_cell[one.cell].append(one)
    alone = {key: _row(of_cell, folder) for key, of_cell in by_cell.items() if key[-1] != CAPACITY}
    findings = Findings(
        sweep=sweep,
        facts=facts,
        rows=(),
        capacities={
            key[:-1]: one.achieved
            for key, of_cell in by_cell.items()
            if key[-1] == CAPACITY
            for one in of_cell
            if not one.void and one.achieved
        },
        void=[one for one in measurements if one.void],
    )
    rows = [_compared(row, alone.get(findings.baseline_of(row))) for row in alone.values()]
    order = {key: place for place, key in enumerate(_order(sweep))}
    rows.sort(key=lambda row: order.get(row.key, len(order)))
    return Findings(sweep=sweep, facts=facts, rows=rows, capacities=findings.capacities, void=findings.void)


def _order(sweep: Sweep) -> list[tuple[str, ...]]:
    """Loads first, then the configurations in the order of the file."""
    from itertools import product

    labels = product(*(sweep.labels(dimension) for dimension in DIMENSIONS))
    return [(*configuration, load) for load, configuration in product(sweep.loads, list(labels))]


def _row(of_cell: Sequence[Measurement], folder: RunFolder) -> Row:
    valid = sorted((one for one in of_cell if not one.void), key=lambda one: one.block)
    records = [folder.load_records(one.records) for one in valid if one.records]
    latencies = [each.latency_ms for each in records]
    first = of_cell[0]
    together = np.concatenate(latencies) if latencies else np.empty(0)
    return Row(
        labels={dimension: getattr(first, dimension) for dimension in DIMENSIONS},
        load=first.load,
        valid=valid,
        void=[one for one in of_cell if one.void],
        quantiles={name: pooled_quantile(latencies, share) for name, share in QUANTILES.items()},
        parts=_parts(records),
        ecdf=np.quantile(together, np.linspace(0, 1, _ECDF_POINTS)) if len(together) else together,
    )


def _parts(records: Sequence[Records]) -> Mapping[str, float]:
    """The mean over all requests; without the server's parts where it left one out."""
    found = [(parts, int(each.answered.sum())) for each in records if (parts := each.parts_ms())]
    if not found:
        return {}
    names = [name for name in found[0][0] if all(name in parts for parts, _ in found)]
    weights = [count for _, count in found]
    return {name: float(np.average([parts[name] for parts, _ in found], weights=weights)) for name in names}


def _compared(row: Row, baseline: Row | None) -> Row:
    if baseline is None or baseline.key == row.key:
        return row
    of_baseline = {one.block: one for one in baseline.valid}
    pairs = [(one, of_baseline[one.block]) for one in row.valid if one.block in of_baseline]
    ratios: dict[str, Interval | None] = {}
    for name in QUANTILES:
        values = [
            (ours, base)
            for one, other in pairs
            if (ours := getattr(one, f"{name}_ms")) and (base := getattr(other, f"{name}_ms"))
        ]
        enough = row.quantiles[name] is not None and baseline.quantiles[name] is not None
        ratios[name] = (
            paired_ratio([ours for ours, _ in values], [base for _, base in values]) if enough else None
        )
    return Row(**{**vars(row), "ratios": ratios})
