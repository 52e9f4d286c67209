"""The results of `make bench`, as a table and as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from rich.table import Table

from benchmarks.load_generator import LoadResult
from benchmarks.report import made_with, markdown_table, spell_number, spell_ratios
from benchmarks.turns import paired_ratios

Reference = Literal["limit", "packed", "floor", "plain", "baseline"]

HEADINGS: Mapping[Reference, str] = {
    "limit": "× limit",
    "packed": "× packed limit",
    "floor": "× floor",
    "plain": "× without attention",
    "baseline": "× baseline",
}


def strongest(rounds: Sequence[Sequence[float]], *, lowest: bool = False) -> int:
    """Return which of several candidates has the highest median over the rounds.

    The best candidate of each single round would be too strong a limit: it also picks whom noise favours.

    Args:
        rounds: In each round, a value of each candidate.
        lowest: The best value is the lowest, as for latencies.
    """
    medians = [median(values) for values in zip(*rounds, strict=True)]
    return medians.index(min(medians) if lowest else max(medians))


@dataclass(frozen=True, kw_only=True)
class Target:
    """The ratio that a measurement should reach."""

    of: Reference
    least: float | None = None
    most: float | None = None
    plus_ms: float = 0.0
    """On top of `most`."""

    def __str__(self) -> str:
        bound = f"≥ {self.least}" if self.least is not None else f"≤ {self.most}"
        return f"{bound} {HEADINGS[self.of]}" + (f" + {self.plus_ms} ms" if self.plus_ms else "")


@dataclass(frozen=True, kw_only=True)
class BenchSample:
    """One round of a measurement."""

    polyhead: float
    """Sequences per second, or p50 in ms; so are the references."""
    references: Mapping[Reference, float]
    limits: Sequence[float]
    """Each candidate's for the limit."""
    p50_ms: float
    p99_ms: float
    errors: int
    client_cores: float
    server_cores: float

    @classmethod
    def of(
        cls,
        load: LoadResult,
        polyhead: float,
        references: Mapping[Reference, float],
        limits: Sequence[float] = (),
    ) -> "BenchSample":
        """Make one from a load and the references of its round."""
        return cls(
            polyhead=polyhead,
            references=references,
            limits=limits,
            p50_ms=load.percentile_ms(50),
            p99_ms=load.percentile_ms(99),
            errors=load.errors,
            client_cores=load.client_cores,
            server_cores=load.server_cores,
        )


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """All rounds of one kind of traffic, a row of the table."""

    encoder: str
    traffic: str
    in_flight: int
    unit: Literal["seq/s", "p50 ms"]
    target: Target | None
    candidates: Sequence[str] = ()
    """What may be the limit, in words."""
    share: float | None = None
    """Of the tokens in padded batches, those that exist; None where nothing is padded."""
    samples: Sequence[BenchSample]

    def median(self, name: str) -> float:
        """Return the median of a field of the rounds."""
        return float(median(getattr(each, name) for each in self.samples))

    @property
    def limit(self) -> int | None:
        """The candidate that is the limit, in all rounds alike."""
        if not self.candidates:
            return None
        return strongest([each.limits for each in self.samples], lowest=self.unit == "p50 ms")

    def values(self, of: Reference) -> list[float]:
        """Return a reference's value in each round; nothing if it was not measured."""
        if of == "limit" and (limit := self.limit) is not None:
            return [each.limits[limit] for each in self.samples]
        return [each.references[of] for each in self.samples if of in each.references]

    def ratios(self, of: Reference) -> list[float]:
        """Return each round's ratio to a reference, ascending."""
        if not (values := self.values(of)):
            return []
        return paired_ratios((each.polyhead for each in self.samples), values)

    def without_client(self, cores: int) -> float | None:
        """Return the sequences per second that the server could answer if it had every core to itself.

        None with one request in flight, which does not fill the machine.
        """
        if self.in_flight == 1:
            return None
        return float(median(cores * each.polyhead / each.server_cores for each in self.samples))

    @property
    def met(self) -> bool | None:
        """Whether the median round reaches the target; None where there is none."""
        target = self.target
        if target is None:
            return None
        if target.least is not None:
            return median(self.ratios(target.of)) >= target.least
        most = target.most or 0.0
        allowed = (
            most * value + target.plus_ms - each.polyhead
            for each, value in zip(self.samples, self.values(target.of), strict=True)
        )
        return bool(median(allowed) >= 0)

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values."""
        ratios = {of: self.ratios(of) for of in HEADINGS}
        found = {"ratios": ratios, "limit": self.limit, "target": str(self.target or ""), "met": self.met}
        return asdict(self) | found


def table(measurements: Sequence[BenchRow], *, cores: int) -> Table:
    """Return a table for the terminal."""
    rows = _rows(measurements, cores, spread=False)
    shown = Table(*rows[0], title="polyhead against onnxruntime alone (limit) and an echo (floor)")
    for row in rows:
        shown.add_row(*row.values())
    return shown


def page(
    measurements: Sequence[BenchRow], health: Mapping[str, float], facts: Mapping[str, Any], *, cores: int
) -> str:
    """Return the result as a page in Markdown.

    Args:
        measurements: All of them.
        health: Latencies of health checks, if they were measured.
        facts: The fingerprint.
        cores: Cores of the machine.
    """
    lines = [
        "# What serving costs on top of onnxruntime",
        "",
        made_with(facts) + ".",
        "",
        "Made by `make bench`. Client and server share the machine. Limit: onnxruntime in a process of",
        "its own, with the machine to itself. A search picks the best batches for one run with all",
        "threads, and for one-thread runs on each core. Both are measured in every round, and the one",
        "with the higher median is the limit: the better one of each round would also be the luckier one.",
        "For mixed lengths the limit runs a graph that computes padding, as other servers would; the packed",
        "limit runs the graph that is served, which computes only tokens that exist. So many of the padded",
        "tokens exist: see the share, for batches of as many requests as are in flight.",
        "Floor: a `grpc.aio` server that echoes, under the same load. Ratios are those of the median",
        "round, with the lowest and the highest in brackets; they are of latencies where p50 is given.",
        "Without client: what the server could answer if it had all cores, at the CPU time that it spends",
        "on a sequence now; an upper bound.",
        "",
        *markdown_table(_rows(measurements, cores, spread=True)),
    ]
    if health:
        lines += [
            f"Health checks, p50 / p99: {health['idle_p50_ms']:.1f} / {health['idle_p99_ms']:.1f} ms on an "
            f"idle server, {health['beside_p50_ms']:.1f} / {health['beside_p99_ms']:.1f} ms beside two "
            f"streams of replies of {health['reply_mib']:.0f} MiB.",
            "",
        ]
    return "\n".join(lines)


def _rows(measurements: Sequence[BenchRow], cores: int, *, spread: bool) -> list[dict[str, str]]:
    """Return the table's rows; `spread` adds the lowest and the highest ratio."""
    used = [of for of in HEADINGS if any(each.ratios(of) for each in measurements)]
    return [
        {
            "encoder": each.encoder,
            "traffic": each.traffic,
            "in flight": str(each.in_flight),
            "tokens that exist": "" if each.share is None else f"{each.share:.2f}",
            "polyhead": f"{spell_number(each.median('polyhead'))} {each.unit}",
            **{HEADINGS[of]: _ratios(each.ratios(of), spread=spread) for of in used},
            "limit": _limit(each),
            "target": str(each.target or ""),
            "met": {None: "", True: "yes", False: "no"}[each.met],
            "p50 / p99 ms": f"{each.median('p50_ms'):,.1f} / {each.median('p99_ms'):,.1f}",
            "cores: client / server": " / ".join(
                f"{each.median(name):.2f}" for name in ("client_cores", "server_cores")
            ),
            "without client": _without_client(each, cores),
            "errors": str(sum(one.errors for one in each.samples)),
        }
        for each in measurements
    ]


def _ratios(ratios: Sequence[float], *, spread: bool) -> str:
    if not ratios:
        return ""
    return spell_ratios(ratios) if spread else f"{median(ratios):.2f}"


def _without_client(row: BenchRow, cores: int) -> str:
    if (rate := row.without_client(cores)) is None:
        return ""
    limits = row.values("limit")
    return spell_number(rate) + (f" = {rate / median(limits):.2f} × limit" if limits else "")


def _limit(row: BenchRow) -> str:
    if row.limit is None:
        return ""
    return f"{spell_number(median(row.values('limit')))} ({row.candidates[row.limit]})"
