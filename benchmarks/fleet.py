"""`make fleet`: whether `polyhead plan` predicts what a machine was measured to carry, and was not fitted to.

Sweeps of one encoder at three lengths. Of each, one measured point is removed (an open loop at a length), or
all that was measured at the middle length. The plan is made from the rest, and the removed point's p99 is its
limit. Its largest rate of a machine, divided by the rate at which that p99 was measured, should be 1. Rates
are compared because machines are counted by them; near the capacity, twice the p99 is a few percent of the
rate.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
from report import console, made_with, markdown_table, with_fingerprint, write

_TOLERANCE = 0.15
_HIGHEST_SHARE = 0.97
_LENGTHS = (32, 64, 128)
_SWEEP: dict[str, Any] = {
    "title": "What a machine carries",
    "encoder": {"vocabulary": 1000, "d_model": 384, "heads": 12, "layers": 2, "feed_forward": 1536},
    "families": {"fleet-384": {}},
    "tokens": list(_LENGTHS),
    "loads": ["single", "30%", "50%", "70%", "85%"],
    "blocks": 3,
    "seconds": 3.0,
    "warm_up_seconds": 3.0,
    "retries": 3,
}


def _check(folder: RunFolder, repeat: int) -> Iterator[dict[str, Any]]:
    """Remove each point in turn, and predict it."""
    for point in read_measured(folder).points:
        yield _row(folder, repeat, point, "this point", load=point.load)
        if point.tokens == _LENGTHS[1]:
            yield _row(folder, repeat, point, f"T = {point.tokens}", load=None)


def _row(
    folder: RunFolder, repeat: int, point: LoadPoint, removed: str, *, load: str | None
) -> dict[str, Any]:
    row = {
        "repeat": repeat,
        "tokens": point.tokens,
        "load": point.load,
        "removed": removed,
        "rate": point.rate,
        "p99_ms": point.p99.times(1e3).facts(),
    }
    with tempfile.TemporaryDirectory(prefix="polyhead-fleet-") as name:
        left = RunFolder(Path(name))
        for file in ("sweep.json", "records"):
            (left.path / file).symlink_to((folder.path / file).resolve())
        lines = [
            one.model_dump_json() + "\n"
            for one in folder.journal().measurements
            if one.tokens != str(point.tokens) or one.load != (load or one.load)
        ]
        (left.path / "cells.jsonl").write_text("".join(lines))
        try:
            model = MachineModel.fit(read_measured(left), point.tokens)
            predicted, limited_by = largest_rate(model, point.p99.value, _HIGHEST_SHARE)
        except SweepError as error:
            return {**row, "predicted": None, "ratio": None, "why": str(error)}
    return {**row, "predicted": predicted.rate, "ratio": predicted.rate / point.rate, "why": limited_by}


def _page(result: dict[str, Any]) -> str:
    rows = result["rows"]
    lines = [
        "# What a machine carries: plans beside measured points",
        "",
        f"{made_with(result['fingerprint'])}: 384/12, two layers, {result['repeats']} sweeps.",
        "",
        "The plan was not fitted to what was removed. Its limit is the removed point's p99. Its largest",
        "rate, divided by the rate that was measured, should be 1.",
        "",
        *(f"- {line}" for line in result["summary"]),
        "",
        *markdown_table(
            {
                "sweep": str(row["repeat"]),
                "T": str(row["tokens"]),
                "load": row["load"],
                "removed": row["removed"],
                "p99, ms": "{value:.1f} ({low:.1f}–{high:.1f})".format(**row["p99_ms"]),
                "measured, requests/s": f"{row['rate']:.0f}",
                "planned": "–" if row["predicted"] is None else f"{row['predicted']:.0f}",
                "planned / measured": "–" if row["ratio"] is None else f"{row['ratio']:.2f}",
            }
            for row in rows
        ),
    ]
    return "\n".join(lines) + "\n"


def _summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for removed in dict.fromkeys(row["removed"] for row in rows):
        ratios = [row["ratio"] for row in rows if row["removed"] == removed and row["ratio"]]
        all_of_it = sum(row["removed"] == removed for row in rows)
        within = sum(abs(ratio - 1) <= _TOLERANCE for ratio in ratios)
        spread = f"median {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}" if ratios else "none"
        lines.append(f"removed {removed}: {within} of {all_of_it} within {_TOLERANCE:.0%}; {spread}")
    return lines


def main() -> int:
    """Sweep, remove, plan, and return 0 if the median plan is within the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="sweeps, with different arrivals")
    parser.add_argument("--runs", type=Path, nargs="*", help="sweeps that were measured before, instead")
    parser.add_argument("--out", type=Path, default=Path("build/bench/fleet"), help="without its ending")
    arguments = parser.parse_args()
    folders = [RunFolder(run) for run in arguments.runs or ()]
    if not folders:
        with SweepProgress(console) as progress:
            folders = [
                run_sweep(
                    Sweep.model_validate({**_SWEEP, "arrivals": repeat}),
                    arguments.out.with_name("fleet-runs") / str(repeat),
                    models=arguments.out.with_name("fleet-models"),
                    address=None,
                    command=sys.argv,
                    progress=progress,
                )
                for repeat in range(arguments.repeats)
            ]
    rows = [row for repeat, folder in enumerate(folders) for row in _check(folder, repeat)]
    result = with_fingerprint({"repeats": len(folders), "summary": _summary(rows), "rows": rows})
    for line in result["summary"]:
        console.print(line, highlight=False)
    write(arguments.out, result, _page(result))
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    return 0 if ratios and abs(median(ratios) - 1) <= _TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
