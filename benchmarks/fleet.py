"""`make fleet`: whether `polyhead plan` predicts what a machine was measured to carry, and was not fitted to.

One encoder at three lengths. One measured point is removed (an open loop at a length), or all that was
measured at the middle length. The plan is made from the rest, and the removed point's p99 is its limit. Its
largest rate of a machine, divided by the rate at which that p99 was measured, should be 1. Rates are compared
because machines are counted by them; near the capacity, twice the p99 is a few percent of the rate.

A shared host changes its speed within minutes. So there are many rounds: short sweeps, each with capacities,
rates and a plan of its own. The ratios of the rounds make one mean for each point, with an interval. What
changes from round to round is in the interval, and what the plan does wrong in the mean.

All rounds count. What is chosen is chosen before anything is planned: the sweep tries runs again in which
other processes, or the machine's host, took CPU time away.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.frame import Condition, console, finish, markdown_table, options
from polyhead_load.errors import SweepError
from polyhead_load.fleet.measured import LoadPoint, read_measured
from polyhead_load.fleet.model import MachineModel
from polyhead_load.fleet.sizing import largest_rate
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.intervals import FEWEST_BLOCKS, Interval, paired_ratio
from polyhead_load.sweep.progress import SweepProgress
from polyhead_load.sweep.spec import Sweep
from polyhead_load.sweep.sweeping import run_sweep

_TOLERANCE = 0.15
_MOST = 0.75
"""The share of points that must be within the tolerance."""
_SHARP = 0.5
"""The share of points whose interval must reach no further than the tolerance from its mean."""
_ROUNDS = 9
_SECONDS = 5.0
"""The p99 of one run takes 368 requests."""
_HIGHEST_SHARE = 1.2
"""No plan is limited by its share of the capacity: it could not be too high there."""
_FARTHEST = 2.0
"""A round's ratio beyond this, or a plan that there is not, counts as this: it decides no mean alone."""
_LENGTHS = (32, 64, 128)
_SHARES = ("40%", "60%", "80%")
ONE_POINT, ONE_LENGTH = "this point", f"T = {_LENGTHS[1]}"
"""What is removed."""
_SWEEP: dict[str, Any] = {
    "title": "What a machine carries",
    "encoder": {"vocabulary": 1000, "d_model": 384, "heads": 12, "layers": 2, "feed_forward": 1536},
    "families": {"fleet-384": {}},
    "tokens": list(_LENGTHS),
    "loads": ["single", *_SHARES],
    "blocks": 1,
    "capacity_runs": 1,
    "warm_up_seconds": 3.0,
    "retries": 2,
    "gates": {"foreign_cpu": 0.05},
}


@dataclass(frozen=True, kw_only=True)
class Removal:
    """A point that was measured in a round, beside the round's plan, which does not know it."""

    tokens: int
    load: str
    removed: str
    """What the plan does not know."""
    rate: float
    """Requests a second, measured."""
    p99: float
    """Measured, in seconds; the plan's limit."""
    planned: float
    """The plan's largest rate of a machine; 0 if there is no plan."""

    @property
    def ratio(self) -> float:
        """Return the planned rate divided by the measured one, within what counts."""
        return min(_FARTHEST, max(1 / _FARTHEST, self.planned / self.rate))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the rounds say of one point."""

    removed: str
    tokens: int
    load: str
    rounds: Sequence[Removal]
    """At least three."""

    @property
    def ratio(self) -> Interval:
        """Return the planned rate divided by the measured one."""
        mean = paired_ratio([each.ratio for each in self.rounds], [1.0] * len(self.rounds))
        if mean is None:
            raise AssertionError("a verdict has three rounds or more")
        return mean

    @property
    def within(self) -> bool:
        """Return whether the mean is within the tolerance."""
        return abs(self.ratio.value - 1) <= _TOLERANCE

    @property
    def contradicted(self) -> bool:
        """Return whether all of the interval is outside the tolerance."""
        return self.ratio.low > 1 + _TOLERANCE or self.ratio.high < 1 - _TOLERANCE

    @property
    def sharp(self) -> bool:
        """Return whether the interval reaches no further from the mean than the tolerance."""
        return self.ratio.high <= (1 + _TOLERANCE) * self.ratio.value


def measure_rounds(out: Path, *, number: int, seconds: float) -> list[RunFolder]:
    """Measure so many rounds, one after the other; a run takes so many seconds."""
    shutil.rmtree(out, ignore_errors=True)  # a sweep would go on where an earlier one has ended
    rounds: list[RunFolder] = []
    for arrivals in range(1, number + 1):
        with SweepProgress(console) as progress:
            rounds.append(
                run_sweep(
                    Sweep.model_validate(_SWEEP | {"seconds": seconds, "arrivals": arrivals}),
                    out / f"{arrivals:02d}",
                    models=out.with_name("fleet-models"),
                    address=None,
                    command=sys.argv,
                    progress=progress,
                )
            )
    return rounds


def removals(folder: RunFolder) -> list[Removal]:
    """Remove each point of a round in turn, and plan with its p99 as the limit."""
    measured = read_measured(folder)
    if list(measured.capacities) != list(_LENGTHS):
        return []  # a missing measurement is no fault of a plan
    rows = []
    for point in measured.points:
        with without(folder, point.tokens, point.load) as left:
            rows.append(_removal(left, point, ONE_POINT))
        if point.tokens == _LENGTHS[1]:
            with without(folder, point.tokens) as left:
                rows.append(_removal(left, point, ONE_LENGTH))
    return rows


@contextmanager
def without(folder: RunFolder, tokens: int, load: str | None = None) -> Iterator[RunFolder]:
    """Make a folder that lacks a sweep's measurements at a length, or those of one load there."""
    with tempfile.TemporaryDirectory(prefix="polyhead-fleet-") as name:
        left = RunFolder(Path(name))
        for file in ("sweep.json", "records"):
            (left.path / file).symlink_to((folder.path / file).resolve())
        lines = [
            one.model_dump_json() + "\n"
            for one in folder.journal().measurements
            if one.tokens != str(tokens) or one.load != (load or one.load)
        ]
        (left.path / "cells.jsonl").write_text("".join(lines))
        yield left


def _removal(left: RunFolder, point: LoadPoint, removed: str) -> Removal:
    model = MachineModel.fit(read_measured(left), point.tokens)
    try:
        planned = largest_rate(model, point.p99.value, _HIGHEST_SHARE)[0].rate
    except SweepError:
        planned = 0.0
    return Removal(
        tokens=point.tokens,
        load=point.load,
        removed=removed,
        rate=point.rate,
        p99=point.p99.value,
        planned=planned,
    )


def verdicts(rows: Sequence[Removal]) -> list[Verdict]:
    """Put the rounds of each point together; a point of fewer than three rounds has no verdict."""
    together: dict[tuple[str, int, str], list[Removal]] = {}
    for row in sorted(rows, key=lambda row: (row.removed == ONE_LENGTH, row.tokens, row.load)):
        together.setdefault((row.removed, row.tokens, row.load), []).append(row)
    return [
        Verdict(removed=removed, tokens=tokens, load=load, rounds=rounds)
        for (removed, tokens, load), rounds in together.items()
        if len(rounds) >= FEWEST_BLOCKS
    ]


def conditions(found: Sequence[Verdict]) -> list[Condition]:
    """Return what must hold."""
    held = []
    for removed, points in ((ONE_POINT, len(_LENGTHS) * len(_SHARES)), (ONE_LENGTH, len(_SHARES))):
        own = [one for one in found if one.removed == removed]
        ratios = [one.ratio.value for one in own]
        spread = f"; median {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
        within, sharp, contradicted = (
            sum(getattr(one, name) for one in own) for name in ("within", "sharp", "contradicted")
        )
        held += [
            Condition(
                name=f"{removed} removed: all points were measured in {FEWEST_BLOCKS} rounds or more",
                holds=len(own) == points,
                seen=f"{len(own)} of {points}",
            ),
            Condition(
                name=f"{removed} removed: {_MOST:.0%} of planned rates within {_TOLERANCE:.0%} "
                "of the measured one",
                holds=within >= _MOST * points,
                seen=f"{within} of {points}{spread}",
            ),
            Condition(
                name=f"{removed} removed: no interval is all outside of these {_TOLERANCE:.0%}",
                holds=contradicted == 0 < len(own),
                seen=f"{contradicted} of {len(own)}",
            ),
            Condition(
                name=f"{removed} removed: {_SHARP:.0%} of the intervals reach no further than "
                f"{_TOLERANCE:.0%} from their mean",
                holds=sharp >= _SHARP * points,
                seen=f"{sharp} of {points}",
            ),
        ]
    return held


def _sections(found: Sequence[Verdict]) -> list[str]:
    return markdown_table(
        {
            "removed": one.removed,
            "T": one.tokens,
            "load": one.load,
            "rounds": len(one.rounds),
            "measured, requests/s": _span(each.rate for each in one.rounds),
            "p99, ms": _span(1e3 * each.p99 for each in one.rounds),
            "planned / measured": _interval(one.ratio) if one.within else f"**{_interval(one.ratio)}**",
        }
        for one in found
    )


def _span(values: Iterable[float]) -> str:
    known = list(values)
    return f"{min(known):.0f}–{max(known):.0f}"


def _interval(ratio: Interval) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def main() -> int:
    """Measure rounds, remove, plan, and return 0 if every condition holds."""
    chosen = options(__doc__, "fleet", seconds=_SECONDS, rounds=_ROUNDS).parse_args()
    rounds = measure_rounds(
        chosen.out.with_name("fleet-rounds"), number=chosen.rounds, seconds=chosen.seconds
    )
    with console.status("planning"), ProcessPoolExecutor() as pool:
        rows = [row for each in pool.map(removals, rounds) for row in each]
    found = verdicts(rows)
    return finish(
        chosen,
        "make fleet",
        "What a machine carries: plans beside measured points",
        _sections(found),
        conditions=conditions(found),
        intro=(
            "384/12, two layers. Each round is a short sweep. The plan was not fitted to what was removed.",
            "Its limit is the removed point's p99. Its largest rate of a machine, divided by the measured",
            "rate, should be 1. Ratios are geometric means of the rounds, with 95 % intervals.",
        ),
        facts={"points": [{**asdict(one), "ratio": one.ratio.facts()} for one in found]},
    )


if __name__ == "__main__":
    sys.exit(main())
