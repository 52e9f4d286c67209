"""`make agreement`: whether polyhead's load generator measures what an independent one measures.

Both put the same load on the same server: one request in flight, then an open loop at half of the rate that
one in flight reaches. The other generator is `load_generator.py`: asyncio, and nothing in common with
`polyhead_load` but the clock and the arrival times. They take turns in several rounds, each in the opposite
order; each round gives a ratio. The check fails unless the ratio of the p50s is within 5 % of 1.
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.encoders import ENCODERS, export_missing, request_bytes
from benchmarks.load_generator import closed_loop, open_loop
from benchmarks.report import (
    SERVE_FLAGS,
    Condition,
    conclude,
    conditions_rows,
    heading,
    markdown_table,
    options,
    with_fingerprint,
)
from benchmarks.servers import serve
from benchmarks.turns import in_turn
from polyhead_load import LoadPlan
from polyhead_load.schedule import schedule
from polyhead_load.sweep.intervals import Interval, paired_ratio

_TOLERANCE = 0.05
_SHARE = 0.5

Pairs = list[tuple[float, float]]
"""The p50 in ms by polyhead's generator and by the other, of each round."""


def main() -> int:
    """Run the comparison, report, and return 0 if the generators agree."""
    parser = options(__doc__, "agreement", models="bench", epilog=SERVE_FLAGS)
    parser.add_argument("--encoder", choices=[one.name for one in ENCODERS], default="bench-384")
    parser.add_argument("--seconds", type=float, default=5.0, help="per sample")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each generator; 3 or more")
    chosen, flags = parser.parse_known_args()
    encoder = next(one for one in ENCODERS if one.name == chosen.encoder)
    export_missing([encoder], chosen.models)
    requests = request_bytes(encoder, [encoder.tokens] * 16)
    with serve(chosen.models, flags) as server:
        closed = LoadPlan(
            address=server.address,
            model=encoder.name,
            tokens=encoder.tokens,
            mode="closed",
            seconds=chosen.seconds,
        )
        load = asyncio.run(closed_loop(server.address, requests, in_flight=1, seconds=chosen.seconds))
        rate = round(_SHARE * load.rate, 2)
        cells = {
            "one in flight": _compare(closed, requests, chosen.rounds),
            f"{rate:g} requests/s": _compare(
                replace(closed, mode="open", rate=rate), requests, chosen.rounds
            ),
        }
    ratios = {name: paired_ratio(*zip(*pairs, strict=True)) for name, pairs in cells.items()}
    conditions = [
        Condition(
            name=f"{name}: the ratio is within {_TOLERANCE:.0%} of 1, on a quiet machine",
            holds=ratio is not None and abs(ratio.value - 1) <= _TOLERANCE,
            seen=_spell(ratio),
        )
        for name, ratio in ratios.items()
    ]
    facts = {name: {"p50_ms": pairs, "ratio": ratios[name]} for name, pairs in cells.items()}
    result = with_fingerprint(
        {
            "encoder": encoder.name,
            "seconds": chosen.seconds,
            "conditions": conditions,
            "cells": facts,
        }
    )
    medians = {name: np.median(pairs, axis=0) for name, pairs in cells.items()}
    page = [
        *heading("polyhead's load generator beside an independent one", "agreement", result),
        *conditions_rows(conditions),
        *markdown_table(
            {"load": name, "polyhead's, p50 ms": f"{ours:.2f}", "the other, p50 ms": f"{other:.2f}"}
            for name, (ours, other) in medians.items()
        ),
    ]
    return conclude(chosen.out, result, "\n".join(page), conditions)


def _spell(ratio: Interval | None) -> str:
    return "too few rounds" if ratio is None else f"{ratio.value:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"


def _compare(plan: LoadPlan, requests: Sequence[bytes], rounds: int) -> Pairs:
    """Measure with both generators in turn."""
    p50_ms: dict[str, Callable[[LoadPlan], float]] = {
        "polyhead": _polyhead_p50_ms,
        "other": partial(_other_p50_ms, requests),
    }
    pairs: Pairs = []
    for number, order in enumerate(in_turn(p50_ms, rounds)):
        # Both get the same arrivals, and every round gets different ones.
        turn = replace(plan, seed=number)
        found = {name: p50_ms[name](turn) for name in order}
        pairs.append((found["polyhead"], found["other"]))
    return pairs


def _polyhead_p50_ms(plan: LoadPlan) -> float:
    """Run a plan with polyhead's generator."""
    with tempfile.TemporaryDirectory(prefix="polyhead-agreement-") as name:
        file = Path(name) / "plan.json"
        file.write_text(plan.to_json())
        command = [sys.executable, "-m", "polyhead_load.generate", "--plan", str(file), "--out", name]
        subprocess.run(command, check=True)
        with np.load(Path(name) / "records.npz", allow_pickle=False) as records:
            if (records["code"] != 0).any():
                raise SystemExit("requests of polyhead's generator failed: on a quiet machine none do")
            return float(1e3 * np.median(records["done"] - records["planned"]))


def _other_p50_ms(requests: Sequence[bytes], plan: LoadPlan) -> float:
    """Run a plan with the independent generator."""
    if plan.rate is None:
        run = closed_loop(plan.address, requests, in_flight=1, seconds=plan.seconds)
    else:
        arrivals = schedule(plan.rate, seconds=plan.seconds, seed=plan.seed)
        run = open_loop(plan.address, requests, [arrival.planned for arrival in arrivals])
    load = asyncio.run(run)
    if load.errors:
        raise SystemExit("requests of the independent generator failed: on a quiet machine none do")
    return load.percentile_ms(50)


if __name__ == "__main__":
    sys.exit(main())
