"""`make agreement`: whether polyhead's load generator measures what an independent one measures.

Both put the same load on the same server: one request in flight, and then an open loop, at the same times, at
half of what one in flight came to. The other is `load.py`: asyncio, which imports nothing of `polyhead_load`
and has in common with it only the clock and the arrival times. They take turns, in several rounds, each time
the other way round; each round gives a ratio of its own. It fails where the ratio of the p50s is not within
5 % of 1.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from encoders import ENCODERS, equal_lengths, export_missing, request_bytes
from load import Load, closed_loop, send_at
from polyhead_load import LoadPlan
from polyhead_load.schedule import schedule
from polyhead_load.sweep.fingerprint import fingerprint
from polyhead_load.sweep.intervals import Interval, paired_ratio
from servers import polyhead_server

_MOST = 0.05
_SHARE = 0.5

console = Console()
if not console.is_terminal:
    console.width = 140


def generated(plan: LoadPlan) -> list[float]:
    """Return the latencies that the generator measures, in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="polyhead-agreement-") as name:
        folder = Path(name)
        (folder / "plan.json").write_text(plan.to_json())
        command = [sys.executable, "-m", "polyhead_load.generate", "--plan", str(folder / "plan.json")]
        subprocess.run([*command, "--out", name], check=True)
        with np.load(folder / "records.npz", allow_pickle=False) as records:
            if (records["code"] != 0).any():
                raise SystemExit("requests of the generator failed: on a quiet machine none do")
            latencies: list[float] = (1e3 * (records["done"] - records["planned"])).tolist()
    return latencies


def others(plan: LoadPlan, requests: Sequence[bytes]) -> list[float]:
    """Return the latencies that the other generator measures, likewise."""
    if plan.rate is None:
        run = closed_loop(plan.address, requests, in_flight=1, seconds=plan.seconds)
    else:
        arrivals = schedule(plan.rate, seconds=plan.seconds, seed=plan.seed)
        run = send_at(plan.address, requests, [arrival.planned for arrival in arrivals])
    load: Load = asyncio.run(run)
    if load.errors:
        raise SystemExit("requests of the other generator failed: on a quiet machine none do")
    return list(load.latencies_ms)


def compared(plan: LoadPlan, requests: Sequence[bytes], rounds: int) -> list[tuple[float, float]]:
    """Return the p50 of the generator and of the other, in each round."""
    found: list[tuple[float, float]] = []
    for number in range(rounds):
        # The same arrivals for both, and others in each round.
        turn = replace(plan, seed=number)
        if number % 2:
            other, ours = others(turn, requests), generated(turn)
        else:
            ours, other = generated(turn), others(turn, requests)
        found.append((float(np.median(ours)), float(np.median(other))))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("build/bench-models"))
    parser.add_argument("--out", type=Path, default=Path("build/bench/agreement.json"))
    parser.add_argument("--encoder", choices=[one.name for one in ENCODERS], default="bench-384")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each sample")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each; 3 or more")
    chosen, serve_arguments = parser.parse_known_args(arguments)
    encoder = next(one for one in ENCODERS if one.name == chosen.encoder)
    export_missing([encoder], chosen.models)
    requests = request_bytes(encoder, equal_lengths(encoder, 16))
    cells: dict[str, list[tuple[float, float]]] = {}
    with polyhead_server(chosen.models, serve_arguments) as served:
        single = LoadPlan(
            address=served.address,
            model=encoder.name,
            tokens=encoder.tokens,
            mode="closed",
            seconds=chosen.seconds,
        )
        warm = asyncio.run(closed_loop(served.address, requests, in_flight=1, seconds=chosen.seconds))
        cells["one in flight"] = compared(single, requests, chosen.rounds)
        rate = round(_SHARE * warm.rate, 2)
        cells[f"{rate:g} requests/s"] = compared(
            replace(single, mode="open", rate=rate), requests, chosen.rounds
        )
    ratios = {name: paired_ratio(*zip(*rounds, strict=True)) for name, rounds in cells.items()}
    console.print(table(cells, ratios))
    facts = {"fingerprint": fingerprint(sys.argv), "encoder": encoder.name, "seconds": chosen.seconds}
    facts["cells"] = {
        name: {"p50_ms": rounds, "ratio": None if (ratio := ratios[name]) is None else ratio.facts()}
        for name, rounds in cells.items()
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(facts, indent=1) + "\n")
    console.print(str(chosen.out))
    if not all(ratio is not None and abs(ratio.value - 1) <= _MOST for ratio in ratios.values()):
        raise SystemExit(f"each ratio must be within {_MOST:.0%} of 1, on a quiet machine; one is not")


def table(cells: dict[str, list[tuple[float, float]]], ratios: dict[str, Interval | None]) -> Table:
    """Return a table for the terminal."""
    shown = Table("load", "rounds", "generator, p50 ms", "the other, p50 ms", "ratio (95 %)")
    for name, rounds in cells.items():
        ours, other = np.median(rounds, axis=0)
        ratio = ratios[name]
        said = "" if ratio is None else f"{ratio.value:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"
        shown.add_row(name, str(len(rounds)), f"{ours:.2f}", f"{other:.2f}", said)
    return shown


if __name__ == "__main__":
    main()
