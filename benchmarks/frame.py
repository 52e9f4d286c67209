"""What benchmarks share: contenders take turns; their samples give ratios, conditions and a page.

A slow phase of the machine slows all that take turns, so each ratio is of one round.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.load_generator import LoadResult, Send
from polyhead_load.sweep.fingerprint import fingerprint
from polyhead_load.sweep.measuring import CpuTimes

T = TypeVar("T")
S = TypeVar("S")

console = Console()
if not console.is_terminal:
    console.width = 140

_FEWEST_TURNS = 6


# ---- Samples, taken in turn ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One load, or one run in process."""

    rate: float
    """Sequences per second."""
    p50_ms: float
    p99_ms: float = 0.0
    """0 in process."""
    batch: float = 0.0
    """Sequences per run; 0 where that is not known."""
    errors: int = 0
    client_cores: float = 0.0
    server_cores: float = 0.0

    @classmethod
    def of_load(cls, load: LoadResult, per_call: int = 1, **more: Any) -> "Sample":
        """Sum up a load of calls of so many sequences."""
        return cls(
            rate=per_call * load.rate,
            p50_ms=load.percentile_ms(50),
            p99_ms=load.percentile_ms(99),
            errors=load.errors,
            client_cores=load.client_cores,
            server_cores=load.server_cores,
            **more,
        )


def put_load(send: Send, seconds: float, per_call: int = 1) -> Sample:
    """Send for a while, and for a fifth of it before, unmeasured: caches and clocks come up to speed."""
    asyncio.run(send(seconds=seconds / 5))
    return Sample.of_load(asyncio.run(send(seconds=seconds)), per_call)


def in_turn(items: Iterable[T], rounds: int) -> Iterator[list[T]]:
    """Yield the items for each round, in every second one backwards."""
    forwards = list(items)
    for number in range(rounds):
        yield forwards[::-1] if number % 2 else forwards


def compare(what: str, measures: Mapping[str, Callable[[], S]], rounds: int) -> dict[str, list[S]]:
    """Measure each contender once in every round, in turn, and return what was found by contender.

    Args:
        what: Is shown meanwhile.
        measures: By contender.
        rounds: Samples of each.
    """
    found: dict[str, list[S]] = {name: [] for name in measures}
    turns = [name for order in in_turn(measures, rounds) for name in order]
    for name in track(turns, description=what, console=console):
        found[name].append(measures[name]())
    return found


def time_in_turn(
    calls: Mapping[str, Callable[[], object]],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Run each call in turn, in both directions, and return the seconds of each run.

    Each call is run once before, unmeasured, and then six times or more.

    Args:
        calls: By name.
        seconds: For how long, about, all of them are run.
        clock: Returns seconds.
    """
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    turns, end = 0, time.perf_counter() + seconds
    while turns < _FEWEST_TURNS or time.perf_counter() < end:
        for order in in_turn(calls, 2):
            turns += 1
            for name in order:
                began = clock()
                calls[name]()
                taken[name].append(clock() - began)
    return taken


# ---- Ratios --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """All rounds of those that took turns under one load."""

    samples: Mapping[str, Sequence[Sample]]
    """By contender, one of each round."""

    def values(self, name: str, field: str = "rate") -> list[float]:
        """Return a field of a contender in each round."""
        return [getattr(sample, field) for sample in self.samples[name]]

    def median(self, name: str, field: str = "rate") -> float:
        """Return the median of a contender's rounds."""
        return float(median(self.values(name, field)))

    def ratios(self, name: str, other: str, field: str = "rate") -> list[float]:
        """Return a contender's values divided by another's in the same round, ascending."""
        return paired_ratios(self.values(name, field), self.values(other, field))

    def strongest(self, names: Iterable[str], field: str = "rate") -> str:
        """Return which contender has the best median: the highest rate, or the lowest p50.

        The best one of each single round would be too strong: that also picks whom noise favours.
        """
        best = max if field == "rate" else min
        return best(names, key=lambda name: self.median(name, field))

    def row(self, name: str, base: str) -> dict[str, str]:
        """Return a contender's row of a table, in which all are compared with one of them."""

        def ratio(field: str) -> str:
            return "" if name == base else spell_ratios(self.ratios(name, base, field))

        batch, p99 = self.median(name, "batch"), self.median(name, "p99_ms")
        client, server = (self.median(name, field) for field in ("client_cores", "server_cores"))
        return {
            "": f"**{name}**" if name == base else name,
            "sequences/s": spell_number(self.median(name)),
            "×": ratio("rate"),
            "p50 ms": spell_number(self.median(name, "p50_ms")),
            "× ": ratio("p50_ms"),
            "p99 ms": spell_number(p99) if p99 else "",
            "sequences per run": f"{batch:.1f}" if batch else "",
            "cores: client / server": f"{client:.2f} / {server:.2f}" if server else "",
            "errors": str(self.errors(name)),
        }

    def errors(self, name: str) -> int:
        """Return how many calls of a contender failed in all rounds."""
        return sum(sample.errors for sample in self.samples[name])


def paired_ratios(ours: Iterable[float], others: Iterable[float]) -> list[float]:
    """Return the ratios of what was measured in the same turns, ascending."""
    return sorted(own / other for own, other in zip(ours, others, strict=True))


# ---- Conditions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition that a run must meet."""

    name: str
    holds: bool
    seen: str


def at_least(name: str, least: float, of: str, ratios: Sequence[float]) -> Condition:
    """Return whether the median of ascending ratios to `of` is high enough."""
    holds = median(ratios) >= least
    return Condition(name=f"{name} ≥ {least:.3g} × {of}", holds=holds, seen=spell_ratios(ratios, 3))


def at_most(name: str, most: float, of: str, ratios: Sequence[float]) -> Condition:
    """Return whether the median of ascending ratios to `of` is low enough."""
    holds = median(ratios) <= most
    return Condition(name=f"{name} ≤ {most:.3g} × {of}", holds=holds, seen=spell_ratios(ratios, 3))


# ---- The command line, the page and its data -----------------------------------------------------------


def options(
    doc: str | None,
    name: str,
    *,
    models: str | None = None,
    seconds: float | None = None,
    rounds: int | None = None,
) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark.

    What it parses also has `models`, a model repository, `fingerprint`, the machine, the versions and the
    command, and `cpu`, the CPU time that was used before.

    Args:
        doc: What the benchmark does.
        name: What its files are called.
        models: Whose model repository it shares, if it has none of its own.
        seconds: How long a sample lasts by default, where that can be chosen.
        rounds: How many samples there are of each contender by default, where that can be chosen.
    """
    made = argparse.ArgumentParser(description=doc)
    repository = Path(f"build/{models or name}-models")
    made.set_defaults(models=repository, fingerprint=fingerprint(sys.argv), cpu=CpuTimes.now(0.0))
    made.add_argument("--out", type=Path, default=Path(f"build/bench/{name}"), help="without its ending")
    if seconds is not None:
        made.add_argument("--seconds", type=float, default=seconds, help="of each sample")
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds, help="samples of each contender")
    return made


def spell_number(value: float) -> str:
    """Return a number with three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spell_ratios(ascending: Sequence[float], digits: int = 2) -> str:
    """Return the median of the rounds' ratios, with the lowest and the highest."""
    middle, low, high = (f"{ratio:.{digits}f}" for ratio in (median(ascending), ascending[0], ascending[-1]))
    return f"{middle} ({low}–{high})"


def spell_threads(threads: int) -> str:
    """Return a number of threads in words."""
    return f"{threads} thread{'s' * (threads > 1)}"


def markdown_table(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the lines of a table whose columns are the rows' keys; nothing without rows."""
    lines: list[str] = []
    for row in rows:
        if not lines:
            lines += ["| " + " | ".join(row) + " |", "|" + "---|" * len(row)]
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row.values()) + " |")
    return [*lines, ""] if lines else []


def in_rounds(chosen: argparse.Namespace) -> str:
    """Return how the rows of `Rounds` came about."""
    return (
        f"Medians of {chosen.rounds} rounds of {chosen.seconds:g} s or more, in each of which everyone takes "
        "a turn, in every second one backwards. “×” divides by the row in bold in the same round, with the "
        "lowest and the highest round in brackets."
    )


def finish(
    chosen: argparse.Namespace,
    command: str,
    title: str,
    lines: Iterable[str],
    *,
    conditions: Sequence[Condition] = (),
    intro: Sequence[str] = (),
    facts: Mapping[str, Any],
) -> int:
    """Write a page and its data, show the conditions, and return 0 if every one holds.

    The page has the title, how, when, where and with what it was made, how quiet the machine was, the
    introduction, the conditions and then the lines.

    Call it when all processes of the benchmark have ended: those that have not count as others.

    Args:
        chosen: What a parser of `options` gave.
        command: What makes the page again.
        title: The page's.
        lines: The rest of the page, in Markdown.
        conditions: What must hold.
        intro: Lines that come before the conditions.
        facts: The data: JSON values and data classes.
    """
    made, out = chosen.fingerprint, chosen.out
    versions = [f"{name} {made[name]}" for name in ("Python", "grpcio", "polyhead")]
    made_with = ", ".join([made["began"], f"{made['cores']} cores ({made['processor']})", *versions])
    cpu = CpuTimes.now(0.0)
    foreign, stolen = chosen.cpu.foreign_cores(cpu), chosen.cpu.stolen_cores(cpu)
    others = "an unknown number of" if foreign is None else f"{max(foreign, 0.0):.2f}"
    page = [
        f"# {title}",
        "",
        f"Made by `{command}` ([how](../../docs/benchmarks.md)): {made_with}. Meanwhile other processes kept "
        f"{others} cores busy, and the machine's host took {stolen:.2f} away.",
        "",
        *([*intro, ""] if intro else []),
        *markdown_table(
            {"what must hold": one.name, "": "yes" if one.holds else "**no**", "seen": one.seen}
            for one in conditions
        ),
        *lines,
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    common = {name: getattr(chosen, name) for name in ("rounds", "seconds") if name in chosen}
    common |= {"foreign_cores": foreign, "stolen_cores": stolen, "conditions": conditions}
    result = {"fingerprint": made, **common, **facts}
    out.with_suffix(".json").write_text(json.dumps(result, indent=1, default=asdict) + "\n")
    out.with_suffix(".md").write_text("\n".join(page))
    if conditions:
        table = Table("", "what must hold", "seen")
        for one in conditions:
            table.add_row("[green]yes" if one.holds else "[bold red]no", one.name, one.seen)
        console.print(table)
    console.print(f"{out}.json, .md")
    return 0 if all(one.holds for one in conditions) else 1
