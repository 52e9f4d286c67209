"""Contenders take turns, and what one reaches is a ratio within a round, with an interval.

A slow phase of the machine slows all that take turns. A round in which something else kept the machine busy
is void, and is repeated.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple, TypeVar

from rich.console import Console
from rich.progress import Progress
from scipy import stats

from benchmarks.machine import Disturbance, watch

T = TypeVar("T")

console = Console()

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
    errors: int = 0
    client_cores: float = 0.0
    server_cores: float = 0.0

    @property
    def server_ms(self) -> float:
        """CPU time of the server for each sequence; 0 where unknown."""
        return 1e3 * self.server_cores / self.rate


def in_turn(items: Iterable[T], rounds: int) -> Iterator[list[T]]:
    """Yield the items for each round, in every second one backwards."""
    forwards = list(items)
    for number in range(rounds):
        yield forwards[::-1] if number % 2 else forwards


def compare(
    what: str,
    measures: Mapping[str, Callable[[], Sample]],
    rounds: int,
    *,
    spare: int = 0,
    watched: Callable[[], Callable[[], Disturbance]] = watch,
) -> "Comparison":
    """Measure each contender once in every round, in turn.

    If more than the spare rounds are void, the least disturbed ones stand in, and the result says how many.

    Args:
        what: The title of the result.
        measures: By contender.
        rounds: Samples of each.
        spare: How many more rounds there may be for void ones.
        watched: Begins to watch, and returns what tells how the time since was disturbed.
    """
    taken: list[tuple[Disturbance, dict[str, Sample]]] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=rounds * len(measures))
        for order in in_turn(measures, rounds + spare):
            disturbance, samples = watched(), {}
            for name in order:
                samples[name] = measures[name]()
                progress.advance(task)
            taken.append((disturbance(), samples))
            valid = sum(each.valid for each, _ in taken)
            if valid == rounds:
                break
    taken.sort(key=lambda each: (not each[0].valid, each[0].foreign + each[0].stolen))
    kept = [samples for _, samples in taken[:rounds]]
    return Comparison(
        title=what,
        samples={name: [samples[name] for samples in kept] for name in measures},
        disturbed=rounds - valid,
    )


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


class Ratio(NamedTuple):
    """The median of ratios, and the interval in which it lies with 95 % confidence.

    The interval has no assumptions about how ratios are distributed. Fewer than six have only a range: from
    the lowest to the highest (94 % of five, 75 % of three).
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"


def ratio_of(ours: Iterable[float], others: Iterable[float]) -> Ratio:
    """Compare what was measured in the same turns; not a number where both are infinite in one."""
    ratios = sorted(own / other for own, other in zip(ours, others, strict=True))
    if any(map(math.isnan, ratios)):
        return Ratio(math.nan, math.nan, math.nan)
    outside = max(0, int(stats.binom.ppf(0.025, len(ratios), 0.5)) - 1)
    return Ratio(median(ratios), ratios[outside], ratios[-1 - outside])


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition that a run must meet."""

    name: str
    holds: bool | None
    """None if nothing was measured that it could be judged by."""
    seen: str


@dataclass(frozen=True, kw_only=True)
class Want:
    """A ratio that a contender should reach."""

    of: str
    """How the names begin of those of which the strongest is meant."""
    least: float
    name: str | None = None
    """The contender; None for the base of the comparison."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All rounds of those that took turns under one load."""

    title: str
    samples: Mapping[str, Sequence[Sample]]
    """By contender, one of each round."""
    disturbed: int = 0
    """Rounds that are void and stand in for valid ones."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """How a contender ran, by name."""

    def followed_by(self, other: "Comparison") -> "Comparison":
        """Return its rounds and those of another one under the same load."""
        samples = {name: [*own, *other.samples[name]] for name, own in self.samples.items()}
        return replace(self, samples=samples, disturbed=self.disturbed + other.disturbed)

    @property
    def base(self) -> str:
        """The contender that the others are compared with: the first one."""
        return next(iter(self.samples))

    def values(self, name: str, field: str = "rate") -> list[float]:
        """Return a field of a contender in each round."""
        return [getattr(sample, field) for sample in self.samples[name]]

    def median(self, name: str, field: str = "rate") -> float:
        """Return the median of a contender's rounds."""
        return float(median(self.values(name, field)))

    def ratio(self, name: str, other: str, field: str = "rate") -> Ratio:
        """Compare a contender with another one."""
        return ratio_of(self.values(name, field), self.values(other, field))

    def strongest(self, prefix: str) -> str | None:
        """Return which contender of those whose names begin so has the highest median rate.

        The best one of each single round would be too strong: that also picks whom noise favours.
        """
        names = [name for name in self.samples if name.startswith(prefix)]
        return max(names, key=self.median, default=None)

    def judge(self, wanted: Iterable[Want]) -> list[Condition]:
        """Return which ratios are reached; what takes no part is not judged."""
        found = []
        for want in wanted:
            name, other = want.name or self.base, self.strongest(want.of)
            if name not in self.samples or other is None:
                continue
            ratio = self.ratio(name, other)
            found.append(
                Condition(
                    name=f"{self.title}: {name} ≥ {want.least:g} × {other}",
                    holds=ratio.value >= want.least,
                    seen=str(ratio),
                )
            )
        return found

    def rows(self, *, base: str | None = None) -> Iterator[dict[str, str]]:
        """Yield the row of each contender, in which it is divided by the base."""
        base = base or self.base
        for name in self.samples:
            others = name != base
            p99, cpu = self.median(name, "p99_ms"), self.median(name, "server_ms")
            yield {
                "": name if others else f"**{name}**",
                "sequences/s": spell_number(self.median(name)),
                "×": str(self.ratio(name, base)) if others else "",
                "p50 ms": spell_number(self.median(name, "p50_ms")),
                "× ": str(self.ratio(name, base, "p50_ms")) if others else "",
                "p99 ms": spell_number(p99) if p99 else "",
                "server's CPU ms": spell_number(cpu) if cpu else "",
                "errors": str(self.errors(name)),
                **({"how": self.notes.get(name, "")} if self.notes else {}),
            }

    def errors(self, name: str) -> int:
        """Return how many calls of a contender failed in all rounds."""
        return sum(sample.errors for sample in self.samples[name])

    def lines(self, *, base: str | None = None) -> list[str]:
        """Return its table, with its heading."""
        return [f"## {self.title}", "", *markdown_table(self.rows(base=base))]


def undisturbed(comparisons: Iterable[Comparison]) -> Condition:
    """Return whether all rounds were valid."""
    every = list(comparisons)
    disturbed = sum(each.disturbed for each in every)
    rounds = sum(len(each.samples[each.base]) for each in every)
    seen = f"{disturbed} of {rounds} were"
    return Condition(name="no round was disturbed", holds=not disturbed, seen=seen)


# ---- Words ---------------------------------------------------------------------------------------------


def spell_number(value: float) -> str:
    """Return a number with three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown_table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table whose columns are the rows' keys; nothing without rows."""
    lines: list[str] = []
    for row in rows:
        if not lines:
            lines += ["| " + " | ".join(row) + " |", "|" + "---|" * len(row)]
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row.values()) + " |")
    return [*lines, ""] if lines else []
