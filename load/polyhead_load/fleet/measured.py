"""Read from a sweep's run what its machine did: how long runs took, what it could answer, and how late.

Shape letters: B batch, T tokens.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from polyhead_load.contents import draw_lengths
from polyhead_load.errors import SweepError
from polyhead_load.fleet.machine import Machine, RunTimes, Way
from polyhead_load.load_plan import Lengths
from polyhead_load.records import Records
from polyhead_load.report.findings import QUANTILES
from polyhead_load.sweep.cells import CAPACITY
from polyhead_load.sweep.folder import Measurement, RunFolder
from polyhead_load.sweep.gates import UNSTABLE
from polyhead_load.sweep.intervals import Interval, Values, typical_quantile
from polyhead_load.sweep.spec import length_label, near
from polyhead_server.scheduling.costs import DOUBLING_TOKENS, CostModel, Size

SINGLE = "single"

_FEWEST_RUNS = 5
"""Runs of a size below which their median says little."""
_SAME_RUN_SECONDS = 0.05
"""Answers of one run arrive within this time."""
_LANE_SLACK = 0.1
"""Runs that were under way at once on average, beyond a whole number, and still make no further lane."""
_DRAWN = 512
"""Lengths drawn from a distribution."""
_CPU = "CPUExecutionProvider"
_PACKED = "N,D"
"""The axes of activations of graphs that compute no padding."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The engine's runs and the requests in them, of one cell."""

    rows: NDArray[np.int64]
    """B of each run."""
    seconds: Values
    """Of each run."""
    rests: Values
    """What each request took beside its run and the queue, in seconds."""
    at_once: float
    """Runs that were under way at once, on average."""

    @classmethod
    def of(cls, records: Records, batch: int) -> "Runs":
        """Find runs: the requests of one have the same computing time, to the nanosecond."""
        good = records.answered & (records.compute_ns > 0)
        done, compute = records.done[good], records.compute_ns[good]
        order = np.lexsort((done, compute))
        done, compute = done[order], compute[order]
        apart = (np.diff(compute) != 0) | (np.diff(done) > _SAME_RUN_SECONDS)
        starts = np.flatnonzero(np.concatenate([[True], apart])) if len(done) else np.empty(0, np.int64)
        counts = np.diff(np.append(starts, len(done)))
        seconds = compute[starts] / 1e9
        latency = records.done[good] - records.planned[good]
        rests = latency - (records.compute_ns[good] + np.maximum(0, records.queue_ns[good])) / 1e9
        elapsed = float(done.max() - done.min()) if len(done) > 1 else inf
        return cls(
            rows=batch * counts,
            seconds=seconds,
            rests=np.maximum(0.0, rests),
            at_once=float(seconds.sum()) / elapsed,
        )


@dataclass(frozen=True, kw_only=True)
class LoadPoint:
    """What an open loop has measured; it serves to check the simulation, which knows nothing of it."""

    tokens: int
    load: str
    rate: float
    """Requests a second."""
    p50: Interval
    """In seconds."""
    p99: Interval


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A sweep's measurements of one family, B and attention, at several T."""

    family: str
    batch: int
    attention: str
    machine: Machine
    """Without a gap: it depends on T."""
    capacities: Mapping[int, float]
    """T → requests a second, ascending."""
    mixture: Lengths | None = None
    """Lengths that were measured together: their mean stands for T, though run times differ with T."""
    callers: int
    """How many were in flight while capacities were measured."""
    points: Sequence[LoadPoint]
    left_out: Sequence[str]
    """Measurements that cannot be used, and why."""
    own_server: bool
    """Whether the sweep started its server, beside the generator."""
    flags: str
    """More flags of that server, as the sweep was given them."""
    processor: str
    """The machine, in words."""


def typical_lengths(tokens: int | Lengths, seed: int = 0) -> list[int]:
    """Return T, or lengths that are distributed as wanted."""
    return draw_lengths(tokens, 1 if isinstance(tokens, int) else _DRAWN, np.random.default_rng(seed))


def read_measured(
    folder: RunFolder,
    *,
    family: str | None = None,
    batch: int | None = None,
    attention: str | None = None,
    tokens: int | Lengths | None = None,
) -> Measured:
    """Read the measurements of one configuration at all its fixed lengths, or of one mixture of lengths.

    Args:
        folder: A sweep's run.
        family: Default: the only one.
        batch: Default: 1, or the only one.
        attention: The name of what was asked for. Default: off, or the only one.
        tokens: What is to be planned for: where it is a mixture that was measured, that is read.

    Raises:
        SweepError: It is no run's folder, it has several such configurations or none, or what a plan needs
            was not measured.
    """
    sweep, facts = folder.read()
    labels = {
        "family": _pick("family", family, sweep.labels("family")),
        "batch": _pick("batch", None if batch is None else str(batch), sweep.labels("batch"), "1"),
        "attention": _pick("attention", attention, sweep.labels("attention"), "off"),
    }
    rows = int(labels["batch"])
    mixture = tokens if isinstance(tokens, Lengths) and tokens in sweep.tokens else None
    if mixture is None:
        by_label = {str(each): each for each in sweep.tokens if isinstance(each, int)}
    else:
        by_label = {length_label(mixture): round(fmean(typical_lengths(mixture)))}
    lengths = sorted(by_label.values())
    cells, left_out = _cells(folder, labels, by_label)
    shared: dict[int, list[Runs]] = {}
    alone: dict[int, list[Runs]] = {}
    capacities: dict[int, float] = {}
    for length in lengths:
        found = {load: cells.get((length, load), []) for load in (CAPACITY, SINGLE)}
        if missing := [load for load, measurements in found.items() if not measurements]:
            left_out.append(f"T = {length}: no valid run of {' and '.join(missing)}")
            continue
        beside, lone = (
            [Runs.of(folder.load_records(one.records), rows) for one in measurements if one.records]
            for measurements in found.values()
        )
        if not all(any(len(runs.rows) for runs in each) for each in (beside, lone)):
            left_out.append(f"T = {length}: the server's replies did not say how long runs took")
            continue
        shared[length], alone[length] = beside, lone
        capacities[length] = median(one.achieved for one in found[CAPACITY] if one.achieved)
    if not capacities:
        raise SweepError(
            f"{folder.path} must have, for {_words(labels)}, at least one T, or a mixture that is asked for, "
            "with valid runs of one request in flight and of the capacity, which a sweep measures with the "
            "loads single and 50%. "
            + ("; ".join(left_out) or "It has mixtures of lengths alone: give one with --tokens")
        )
    lanes = max(ceil(median(runs.at_once for runs in each) - _LANE_SLACK) for each in shared.values())
    on_cpu = _CPU in str(facts.get("providers", {}).get(labels["family"], _CPU))
    doubling = DOUBLING_TOKENS if on_cpu else inf
    points = [
        point
        for (length, load), measurements in cells.items()
        if load not in {CAPACITY, SINGLE} and length in capacities
        for point in _point(folder, length, load, measurements)
    ]
    mark = facts.get("fingerprint", {})
    return Measured(
        family=labels["family"],
        batch=rows,
        attention=labels["attention"],
        machine=Machine(
            lanes=max(1, lanes),
            shared=_way(shared, doubling),
            alone=_way(alone, doubling),
            packed=facts.get("activations", {}).get(labels["family"]) == _PACKED,
        ),
        capacities=capacities,
        mixture=mixture,
        callers=sweep.capacity_users,
        points=sorted(points, key=lambda point: (point.tokens, point.rate)),
        left_out=left_out,
        own_server=str(facts.get("server", "")).startswith("its own"),
        flags=" ".join(sweep.serve),
        processor=f"{mark.get('cores', '?')} cores of {mark.get('processor', 'an unknown processor')}",
    )


def _pick(name: str, wanted: str | None, known: Sequence[str], usual: str | None = None) -> str:
    if wanted is None:
        if len(known) == 1:
            return known[0]
        if usual in known:
            return str(usual)
        raise SweepError(f"--{name} must be one of {', '.join(known)}: the sweep has several")
    if wanted not in known:
        raise SweepError(f"--{name} must be one of {', '.join(known)}, was {wanted!r}{near(wanted, known)}")
    return wanted


def _words(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {label}" for name, label in labels.items())


def _cells(
    folder: RunFolder, labels: Mapping[str, str], by_label: Mapping[str, int]
) -> tuple[dict[tuple[int, str], list[Measurement]], list[str]]:
    """Return the usable runs by (T, load), and why others are not."""
    cells: dict[tuple[int, str], list[Measurement]] = defaultdict(list)
    left_out = []
    for one in folder.journal().measurements:
        if one.tokens not in by_label or any(getattr(one, name) != label for name, label in labels.items()):
            continue
        if one.void or not one.records or not one.achieved:
            continue
        tokens = by_label[one.tokens]
        if failed := one.errors + one.shed:
            left_out.append(f"T = {tokens}, {one.load}: {failed} of {one.requests} requests failed")
        else:
            cells[tokens, one.load].append(one)
    return cells, left_out


def _point(
    folder: RunFolder, tokens: int, load: str, measurements: Sequence[Measurement]
) -> Iterator[LoadPoint]:
    """Yield the point of an open loop, of the runs in which the server kept up, if these have answers enough.

    A run of changing speed belongs to it: without those, the point would be that of a better machine.
    """
    kept_up = [
        one
        for one in measurements
        if one.rate and all(reason.startswith(UNSTABLE) for reason in one.overloaded)
    ]
    blocks = [folder.load_records(one.records).latency_ms / 1e3 for one in kept_up if one.records]
    p50, p99 = (typical_quantile(blocks, QUANTILES[name]) for name in ("p50", "p99"))
    if p50 and p99:
        rate = fmean(one.rate for one in kept_up if one.rate)
        yield LoadPoint(tokens=tokens, load=load, rate=rate, p50=p50, p99=p99)


def _way(runs: Mapping[int, Sequence[Runs]], doubling_tokens: float) -> Way:
    """Fit the costs of a way of running."""
    times: dict[Size, list[float]] = defaultdict(list)
    for tokens, each in runs.items():
        for one in each:
            for rows, seconds in zip(one.rows.tolist(), one.seconds.tolist(), strict=True):
                times[Size.full(rows, tokens)].append(seconds)
    often: dict[Size, list[float]] = {}
    for tokens in runs:
        here = {size: seconds for size, seconds in times.items() if size.longest == tokens}
        often |= {size: seconds for size, seconds in here.items() if len(seconds) >= _FEWEST_RUNS} or here
    costs = CostModel(
        {size: median(seconds) for size, seconds in sorted(often.items())}, doubling_tokens=doubling_tokens
    )
    return Way(
        costs=costs,
        times={
            tokens: RunTimes(
                factors=[
                    seconds / costs.price(size)
                    for size, all_seconds in often.items()
                    if size.longest == tokens
                    for seconds in all_seconds
                ],
                rests=np.concatenate([one.rests for one in each]).tolist(),
            )
            for tokens, each in runs.items()
        },
    )
