"""`make fleet`, without noise: planned rates beside those of a simulated server whose p99 is known.

The server is the suite's: polyhead's scheduler on a virtual clock, with run times that vary and CPUs that
runs share. It has none of the plan's own simulation. Plans are made from a sweep of it as from one of a real
machine, without the point or length in question. The limit is the p99 of many more requests at that rate.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tests.load.fleet.known_server import measure, swept

from benchmarks.fleet import without
from benchmarks.frame import console, finish, markdown_table, options
from polyhead_load.errors import SweepError
from polyhead_load.fleet.measured import read_measured
from polyhead_load.fleet.model import MachineModel
from polyhead_load.fleet.sizing import largest_rate
from polyhead_load.load_plan import Lengths
from polyhead_load.sweep.folder import RunFolder

_LENGTHS = (32, 64, 128)
_MIXTURE = Lengths(median=60, sigma=0.5, low=32, high=128)
_SHARES = (0.3, 0.5, 0.7, 0.85)
_HIGHEST_SHARE = 1.2
_SWEPT, _TRUE = 1000, 8000
"""Requests of each of the sweep's runs, and of each of those that tell the true p99."""
_SEEDS = (99, 100, 101)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is planned, and what the plan does not know."""

    tokens: int | Lengths
    share: float
    """Of the capacity that the plan expects."""
    removed: str
    length: int | None = None
    """Whose measurements are removed, and in which load (None: all)."""
    load: str | None = None


def cases() -> Iterator[Case]:
    """Yield what is compared."""
    for share in _SHARES:
        load = f"{100 * share:.0f}%"
        for tokens in _LENGTHS:
            yield Case(tokens=tokens, share=share, removed="this point", length=tokens, load=load)
        yield Case(tokens=_LENGTHS[1], share=share, removed=f"T = {_LENGTHS[1]}", length=_LENGTHS[1])
        yield Case(tokens=_MIXTURE, share=share, removed="nothing: no mixture was measured")


def compare(folder: RunFolder, case: Case) -> dict[str, Any]:
    """Plan one case, and compare it with the truth."""
    if case.length is None:
        model = MachineModel.fit(read_measured(folder), case.tokens)
    else:
        with without(folder, case.length, case.load) as left:
            model = MachineModel.fit(read_measured(left), case.tokens)
    rate = case.share * model.capacity
    p99s = [
        float(np.quantile(measure(case.tokens, _TRUE, rate=rate, seed=seed).latency_ms, 0.99)) / 1e3
        for seed in _SEEDS
    ]
    p99 = float(np.exp(np.mean(np.log(p99s))))
    try:
        planned = largest_rate(model, p99, _HIGHEST_SHARE)[0].rate
    except SweepError:
        planned = 0.0
    return {
        "removed": case.removed,
        "T": f"{_LENGTHS[0]}–{_LENGTHS[-1]}" if isinstance(case.tokens, Lengths) else case.tokens,
        "load": f"{case.share:.0%}",
        "p99, ms": f"{1e3 * p99:.1f} ({1e3 * min(p99s):.1f}–{1e3 * max(p99s):.1f})",
        "requests/s": f"{rate:.0f}",
        "planned / true": f"{planned / rate:.2f}",
        "p99, planned / true": f"{model.predict(rate).p99.value / p99:.2f}",
    }


def main() -> int:
    """Write the table."""
    chosen = options(__doc__, "fleet-known").parse_args()
    with TemporaryDirectory(prefix="polyhead-known-") as name, ProcessPoolExecutor() as pool:
        folder = swept(Path(name) / "run", tokens=_LENGTHS, requests=_SWEPT)
        with console.status("planning"):
            rows = list(pool.map(partial(compare, folder), sorted(cases(), key=lambda case: case.removed)))
    title = "Plans beside a simulated server whose p99 is known"
    return finish(chosen, "make fleet", title, markdown_table(rows), facts={"rows": rows})


if __name__ == "__main__":
    sys.exit(main())
