"""Aggregate a run's measurements: a row for each cell, and what each configuration can answer."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import median
from typing import Any

import numpy as np

from polyhead_load.records import Records
from polyhead_load.sweep.cells import THROUGHPUT, search_rounds
from polyhead_load.sweep.folder import Measurement, RunFolder
from polyhead_load.sweep.intervals import (
    FEWEST_BLOCKS,
    Interval,
    Values,
    blocks_ratio,
    pooled_quantile,
)
from polyhead_load.sweep.loads import parse_load
from polyhead_load.sweep.search import SearchRound, capacity_of
from polyhead_load.sweep.spec import DIMENSIONS, Dimension, Sweep

QUANTILES: Mapping[str, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """Valid runs of one configuration."""

    labels: Mapping[Dimension, str]
    valid: Sequence[Measurement]

    def mean(self, name: str) -> float | None:
        """Return the mean of a measurement's field, or None where no run has it."""
        values = [value for one in self.valid if (value := getattr(one, name)) is not None]
        return float(np.mean(values)) if values else None


@dataclass(frozen=True, kw_only=True)
class Throughput(Aggregate):
    """Requests a second that a configuration answers in a closed loop, whatever they take."""

    value: float
    """The median of its runs."""


@dataclass(frozen=True, kw_only=True)
class Capacity(Aggregate):
    """The largest rate at which a configuration holds a limit on p99."""

    load: str
    """The limit, such as `p99 50ms`."""
    rounds: Sequence[SearchRound]
    interval: Interval | None
    """In requests a second; None for fewer than three rounds that found something."""


@dataclass(frozen=True, kw_only=True)
class Row(Aggregate):
    """One cell. Latencies are in milliseconds, from the planned time to the answer."""

    load: str
    void: Sequence[Measurement]
    quantiles: Mapping[str, Interval | None]
    """By name; None for too few samples."""
    ratios: Mapping[str, Interval | None] = field(default_factory=dict)
    """To the baseline's quantiles in the same blocks; empty where nothing can be compared."""
    uncompared: str = ""
    """Why ratios are missing where there should be some."""
    blocks: Mapping[int, Values] = field(default_factory=dict)
    """Block → latencies."""
    send_lag_p99_ms: float | None = None
    """Over all requests of an open loop."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Parts of the mean latency, which add up to `total`."""

    @property
    def key(self) -> tuple[str, ...]:
        """Return the labels and the load."""
        return *self.labels.values(), self.load

    @property
    def requests(self) -> int:
        """Count the requests of all valid runs."""
        return sum(one.requests for one in self.valid)

    @property
    def reasons(self) -> list[str]:
        """Return why runs are void, each reason once."""
        return list(dict.fromkeys(reason for one in self.void for reason in one.void))

    @property
    def overloaded(self) -> list[Measurement]:
        """Return the valid runs in which the server did not keep up; they count."""
        return [one for one in self.valid if one.overloaded]


@dataclass(frozen=True, kw_only=True)
class SweepFindings:
    """Everything that a report shows."""

    sweep: Sweep
    facts: Mapping[str, Any]
    rows: Sequence[Row]
    """In the order of the sweep; skipped cells have none."""
    throughputs: Sequence[Throughput]
    capacities: Sequence[Capacity]
    """Of all limits that were searched."""
    void: Sequence[Measurement]
    """Every void run."""

    @property
    def overloaded(self) -> list[Measurement]:
        """Return every run in which the server did not keep up, in the order of the rows."""
        return [one for row in self.rows for one in row.overloaded]

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """Return the keys of all cells of the sweep, measured or not, load by load."""
        labels = list(product(*(self.sweep.labels(dimension) for dimension in DIMENSIONS)))
        return [(*configuration, load) for load in self.sweep.loads for configuration in labels]

    @property
    def missing(self) -> list[tuple[str, ...]]:
        """Return the keys of cells without a valid run."""
        measured = {row.key for row in self.rows if row.valid}
        return [key for key in self.cells if key not in measured]

    @property
    def baseline(self) -> str:
        """Return what the others are compared with, in words."""
        return ", ".join(f"{name} {value}" for name, value in self.sweep.compared.items()) or "nothing"

    def is_baseline(self, labels: Mapping[Dimension, str]) -> bool:
        """Return whether others are compared with the configuration of these labels."""
        compared = self.sweep.compared
        return bool(compared) and all(labels[name] == value for name, value in compared.items())


def read_findings(folder: RunFolder) -> SweepFindings:
    """Aggregate what a run's folder holds.

    Raises:
        SweepError: It is no run's folder, or its records are damaged or missing.
    """
    sweep, facts = folder.read()
    measurements = folder.journal().measurements
    by_cell: dict[tuple[str, ...], list[Measurement]] = defaultdict(list)
    for one in measurements:
        by_cell[one.cell].append(one)
    kinds = {key: parse_load(key[-1]).kind for key in by_cell}
    alone = {
        key: _row(runs, folder) for key, runs in by_cell.items() if kinds[key] not in {THROUGHPUT, "p99"}
    }
    found = [_throughput(runs) for key, runs in by_cell.items() if kinds[key] == THROUGHPUT]
    throughputs = [one for one in found if one is not None]
    closed = {tuple(one.labels.values()): one.value for one in throughputs}
    findings = SweepFindings(
        sweep=sweep,
        facts=facts,
        rows=(),
        throughputs=throughputs,
        capacities=[
            _capacity(runs, sweep, closed[key[:-1]])
            for key, runs in by_cell.items()
            if kinds[key] == "p99" and key[:-1] in closed
        ],
        void=[one for one in measurements if one.void],
    )
    rows = [
        _compared(row, alone.get((*{**row.labels, **sweep.compared}.values(), row.load)))
        if sweep.compared and sweep.blocks >= FEWEST_BLOCKS and not findings.is_baseline(row.labels)
        else row
        for row in alone.values()
    ]
    order = {key: place for place, key in enumerate(findings.cells)}
    rows.sort(key=lambda row: order.get(row.key, len(order)))
    return replace(findings, rows=rows)


def _labels(one: Measurement) -> dict[Dimension, str]:
    return {dimension: getattr(one, dimension) for dimension in DIMENSIONS}


def _throughput(runs: Sequence[Measurement]) -> Throughput | None:
    """Return the throughput that runs show; None where none is valid."""
    valid = [one for one in runs if not one.void and one.achieved]
    values = [one.achieved for one in valid if one.achieved]
    if not values:
        return None
    return Throughput(labels=_labels(valid[0]), valid=valid, value=median(values))


def _capacity(runs: Sequence[Measurement], sweep: Sweep, closed: float) -> Capacity:
    """Return what the search of one configuration has found, from where its closed loop has put it."""
    rounds = search_rounds(runs, sweep.rounds, closed)
    return Capacity(
        labels=_labels(runs[0]),
        valid=[one for one in runs if not one.void],
        load=runs[0].load,
        rounds=rounds,
        interval=capacity_of(rounds),
    )


def _row(runs: Sequence[Measurement], folder: RunFolder) -> Row:
    valid = sorted((one for one in runs if not one.void), key=lambda one: one.block)
    by_block = {one.block: folder.load_records(one.records) for one in valid if one.records}
    records = list(by_block.values())
    latencies = [each.latency_ms for each in records]
    lags = [each.lag_ms for each in records if len(each.lag_ms)] if runs[0].rate is not None else []
    return Row(
        labels=_labels(runs[0]),
        load=runs[0].load,
        valid=valid,
        void=[one for one in runs if one.void],
        quantiles={name: pooled_quantile(latencies, share) for name, share in QUANTILES.items()},
        parts=_parts(records),
        blocks={block: each.latency_ms for block, each in by_block.items()},
        send_lag_p99_ms=float(np.quantile(np.concatenate(lags), 0.99)) if lags else None,
    )


def _parts(records: Sequence[Records]) -> Mapping[str, float]:
    """Return the mean parts over all requests; only those that every run has."""
    found = [(parts, int(each.answered.sum())) for each in records if (parts := each.parts_ms())]
    if not found:
        return {}
    names = [name for name in found[0][0] if all(name in parts for parts, _ in found)]
    weights = [count for _, count in found]
    return {name: float(np.average([parts[name] for parts, _ in found], weights=weights)) for name in names}


def _compared(row: Row, baseline: Row | None) -> Row:
    """Add the ratios to the baseline, over the blocks that both have."""
    if not row.valid:
        return row
    if baseline is None or not baseline.valid:
        return replace(row, uncompared="the baseline has no valid run")
    common = [block for block in row.blocks if block in baseline.blocks]
    if len(common) < FEWEST_BLOCKS:
        return replace(row, uncompared=f"too few blocks in common: {len(common)}")
    ours, base = ([each.blocks[block] for block in common] for each in (row, baseline))
    ratios = {
        name: blocks_ratio(ours, base, share) if row.quantiles[name] and baseline.quantiles[name] else None
        for name, share in QUANTILES.items()
    }
    return replace(row, ratios=ratios)
