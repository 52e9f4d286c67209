"""`make fleet`: whether `polyhead plan` predicts what a machine was measured to carry, and was not fitted to.

A sweep of one encoder at three lengths. One measured point is removed (an open loop at a length), or all that
was measured at the middle length. The plan is made from the rest, and the removed point's p99 is its limit.
Its largest rate of a machine, divided by the rate at which that p99 was measured, should be 1. Rates are
compared because machines are counted by them; near the capacity, twice the p99 is a few percent of the rate.

A p99 of some seconds is itself uncertain, and so is the rate that belongs to it. So two things must hold: of
the plans, three of four are within the tolerance, whatever the cause; and none is outside it by more than the
interval of its limit explains.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from polyhead_load.errors import SweepError
from polyhead_load.fleet.measured import LoadPoint, read_measured
from polyhead_load.fleet.model import MachineModel
from polyhead_load.fleet.sizing import largest_rate
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.progress import SweepProgress
from polyhead_load.sweep.spec import Sweep
from polyhead_load.sweep.sweeping import run_sweep
from report import (
    Condition,
    conditions_rows,
    conditions_table,
    console,
    made_with,
    markdown_table,
    with_fingerprint,
    write,
)

_TOLERANCE = 0.15
_MOST = 0.75
"""The share of plans that must be within the tolerance."""
_HIGHEST_SHARE = 0.97
_LENGTHS = (32, 64, 128)
_SHARES = ("30%", "50%", "70%", "85%")
ONE_POINT, ONE_LENGTH = "this point", f"T = {_LENGTHS[1]}"
"""What is removed."""
_SWEEP: dict[str, Any] = {
    "title": "What a machine carries",
    "encoder": {"vocabulary": 1000, "d_model": 384, "heads": 12, "layers": 2, "feed_forward": 1536},
    "families": {"fleet-384": {}},
    "tokens": list(_LENGTHS),
    "loads": ["single", *_SHARES],
    "blocks": 8,
    "seconds": 3.5,
    "warm_up_seconds": 3.0,
    "retries": 3,
}


@dataclass(frozen=True, kw_only=True)
class Removal:
    """A measured point beside the plan that does not know it."""

    tokens: int
    load: str
    removed: str
    """What the plan does not know."""
    rate: float
    """Requests a second, measured."""
    p99_ms: dict[str, float]
    """Measured, with its interval; the plan's limit."""
    planned: float | None
    """The plan's largest rate of a machine; None if it has none."""
    planned_between: tuple[float, float] | None
    """The same for the ends of the p99's interval."""
    p99_ratio: float | None
    """The p99 that the plan expects at the measured rate, divided by the measured one."""
    limited_by: str
    """What keeps the plan from more, or why there is none."""

    @property
    def ratio(self) -> float | None:
        """Return the planned rate divided by the measured one."""
        return None if self.planned is None else self.planned / self.rate

    @property
    def within(self) -> bool:
        """Return whether there is a plan, and within the tolerance."""
        return self.ratio is not None and abs(self.ratio - 1) <= _TOLERANCE

    @property
    def contradicted(self) -> bool:
        """Return whether there is no plan, or none within the tolerance for any p99 in the interval."""
        if self.planned_between is None:
            return True
        low, high = (planned / self.rate for planned in self.planned_between)
        return low > 1 + _TOLERANCE or high < 1 - _TOLERANCE


def removals(folder: RunFolder) -> Iterator[Removal]:
    """Remove each measured point in turn, and plan with its p99 as the limit."""
    for point in read_measured(folder).points:
        with without(folder, point.tokens, point.load) as left:
            yield _removal(left, point, ONE_POINT)
        if point.tokens == _LENGTHS[1]:
            with without(folder, point.tokens) as left:
                yield _removal(left, point, ONE_LENGTH)


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
    planned = between = p99_ratio = None
    try:
        model = MachineModel.fit(read_measured(left), point.tokens)
        p99_ratio = model.predict(point.rate).p99.value / point.p99.value
        between = _largest(model, point.p99.low), _largest(model, point.p99.high)
        prediction, limited_by = largest_rate(model, point.p99.value, _HIGHEST_SHARE)
        planned = prediction.rate
    except SweepError as error:
        limited_by = str(error)
    return Removal(
        tokens=point.tokens,
        load=point.load,
        removed=removed,
        rate=point.rate,
        p99_ms=point.p99.times(1e3).facts(),
        planned=planned,
        planned_between=between,
        p99_ratio=p99_ratio,
        limited_by=limited_by,
    )


def _largest(model: MachineModel, p99: float) -> float:
    """Return the largest rate; 0 where no machine keeps the limit."""
    try:
        return largest_rate(model, p99, _HIGHEST_SHARE)[0].rate
    except SweepError:
        return 0.0


def conditions(rows: Sequence[Removal]) -> list[Condition]:
    """Return what must hold; a plan that there is not is one that is wrong."""
    found = []
    for removed, points in ((ONE_POINT, len(_LENGTHS) * len(_SHARES)), (ONE_LENGTH, len(_SHARES))):
        own = [row for row in rows if row.removed == removed]
        within, contradicted = sum(row.within for row in own), sum(row.contradicted for row in own)
        ratios = [row.ratio for row in own if row.ratio is not None]
        spread = f"; median {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
        lacking = f"; {len(own) - len(ratios)} without a plan" if len(ratios) < len(own) else ""
        found += [
            Condition(
                name=f"{removed} removed: all points were measured, and not void or overloaded",
                holds=len(own) == points,
                seen=f"{len(own)} of {points}",
            ),
            Condition(
                name=f"{removed} removed: {_MOST:.0%} of plans within {_TOLERANCE:.0%} of the measured rate",
                holds=within >= _MOST * len(own) > 0,
                seen=f"{within} of {len(own)}{spread}{lacking}",
            ),
            Condition(
                name=f"{removed} removed: no plan further off than its limit's interval explains",
                holds=contradicted == 0 < len(own),
                seen=f"{contradicted} of {len(own)}",
            ),
        ]
    return found


def _page(result: dict[str, Any], rows: Sequence[Removal]) -> str:
    lines = [
        "# What a machine carries: plans beside measured points",
        "",
        f"Made by `make fleet`: {made_with(result['fingerprint'])}. 384/12, two layers.",
        "",
        "The plan was not fitted to what was removed. Its limit is the removed point's p99. Its largest",
        "rate of a machine, divided by the measured rate, should be 1. In brackets: the 95 % interval of the",
        "p99, and the ratios with its ends as limits. The last column is the p99 that the plan expects at",
        "the measured rate, divided by the measured p99.",
        "",
        *conditions_rows(result["conditions"]),
        *markdown_table(
            {
                "removed": row.removed,
                "T": row.tokens,
                "load": row.load,
                "p99, ms": "{value:.1f} ({low:.1f}–{high:.1f})".format(**row.p99_ms),
                "measured, requests/s": f"{row.rate:.0f}",
                "planned": "none" if row.planned is None else f"{row.planned:.0f}",
                "planned / measured": _ratios(row),
                "p99, planned / measured": _ratio(row.p99_ratio),
            }
            for row in sorted(rows, key=lambda row: row.removed == ONE_LENGTH)
        ),
    ]
    return "\n".join(lines)


def _ratios(row: Removal) -> str:
    ratio = _ratio(row.ratio) if row.within else f"**{_ratio(row.ratio)}**"
    if row.planned_between is None:
        return ratio
    low, high = (_ratio(planned / row.rate) for planned in row.planned_between)
    return f"{ratio} ({low}–{high})" if not row.contradicted else f"{ratio} **({low}–{high})**"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def main() -> int:
    """Sweep, remove, plan, and return 0 if every condition holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a sweep that was measured before, instead")
    parser.add_argument("--out", type=Path, default=Path("build/bench/fleet"), help="without its ending")
    arguments = parser.parse_args()
    if arguments.run is not None:
        folder = RunFolder(arguments.run)
    else:
        fresh = arguments.out.with_name("fleet-run")
        shutil.rmtree(fresh, ignore_errors=True)  # a sweep would go on where an earlier one has ended
        with SweepProgress(console) as progress:
            folder = run_sweep(
                Sweep.model_validate(_SWEEP),
                fresh,
                models=arguments.out.with_name("fleet-models"),
                address=None,
                command=sys.argv,
                progress=progress,
            )
    with console.status("planning"):
        rows = list(removals(folder))
    found = conditions(rows)
    console.print(conditions_table(found))
    result = with_fingerprint(
        {
            "conditions": [asdict(condition) for condition in found],
            "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
        }
    )
    write(arguments.out, result, _page(result, rows))
    return 0 if all(condition.holds for condition in found) else 1


if __name__ == "__main__":
    sys.exit(main())
