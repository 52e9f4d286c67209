"""The results of `make bench`, as a table and as a page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from rich.table import Table

from load_generator import LoadResult

Reference = Literal["limit", "at_once", "floor", "plain", "baseline"]

HEADINGS: Mapping[Reference, str] = {
    "limit": "× limit",
    "at_once": "× limit, runs at once",
    "floor": "× floor",
    "plain": "× without attention",
    "baseline": "× baseline",
}


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
    """Sequences per second, or p50 in ms with one request in flight; so are the references."""
    references: Mapping[Reference, float]
    p50_ms: float
    p99_ms: float
    errors: int
    client_cores: float
    server_cores: float

    @classmethod
    def of(
        cls, load: LoadResult, server_cores: float, polyhead: float, references: Mapping[Reference, float]
    ) -> "BenchSample":
        """Make one from a load and the references of its round."""
        return cls(
            polyhead=polyhead,
            references=references,
            p50_ms=load.percentile_ms(50),
            p99_ms=load.percentile_ms(99),
            errors=load.errors,
            client_cores=load.client_cpu_seconds / load.seconds,
            server_cores=server_cores,
        )


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """All rounds of one kind of traffic, a row of the table."""

    encoder: str
    traffic: str
    in_flight: int | None
    """None in an open loop."""
    unit: str
    target: Target | None
    samples: Sequence[BenchSample]

    def median(self, name: str) -> float:
        """Return the median of a field of the rounds."""
        return float(median(getattr(each, name) for each in self.samples))

    def ratios(self, of: Reference) -> list[float]:
        """Return each round's ratio to a reference, ascending."""
        return sorted(each.polyhead / each.references[of] for each in self.samples if of in each.references)

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
            most * each.references[target.of] + target.plus_ms - each.polyhead for each in self.samples
        )
        return bool(median(allowed) >= 0)

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values."""
        ratios = {of: self.ratios(of) for of in HEADINGS}
        return asdict(self) | {"ratios": ratios, "target": str(self.target or ""), "met": self.met}


def table(measurements: Sequence[BenchRow]) -> Table:
    """Return a table for the terminal."""
    columns, rows = _rows(measurements, spread=False)
    shown = Table(*columns, title="polyhead against onnxruntime alone (limit) and an echo (floor)")
    for row in rows:
        shown.add_row(*row)
    return shown


def page(measurements: Sequence[BenchRow], health: Mapping[str, float], facts: Mapping[str, Any]) -> str:
    """Return the result as a page in Markdown.

    Args:
        measurements: All of them.
        health: Latencies of health checks, if they were measured.
        facts: The fingerprint.
    """
    columns, rows = _rows(measurements, spread=True)
    lines = [
        "# What serving costs on top of onnxruntime",
        "",
        ", ".join(f"{name} {value}" for name, value in facts.items()),
        "",
        "Made by `make bench`. Limit: onnxruntime in a process of its own, at the best batch size: one run",
        "at a time with all cores, and one with one thread on each core at once. Floor: a `grpc.aio` server",
        "that echoes. Client and server share the machine, the limit has it for itself. Ratios are those of",
        "the median round, with the lowest and the highest in brackets; for one in flight, of latencies.",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    if health:
        lines += [
            "",
            f"Health checks, p50 / p99: {health['idle_p50_ms']:.1f} / {health['idle_p99_ms']:.1f} ms on an "
            f"idle server, {health['beside_p50_ms']:.1f} / {health['beside_p99_ms']:.1f} ms beside two "
            f"streams of replies of {health['reply_mib']:.0f} MiB.",
        ]
    return "\n".join(lines) + "\n"


def _rows(measurements: Sequence[BenchRow], *, spread: bool) -> tuple[list[str], Iterable[list[str]]]:
    """Return the columns and the rows; `spread` adds the lowest and the highest ratio."""
    used = [of for of in HEADINGS if any(each.ratios(of) for each in measurements)]
    columns = ["encoder", "traffic", "in flight", "polyhead", *(HEADINGS[of] for of in used), "target", "met"]
    columns += ["p50 / p99 ms", "cores: client / server", "errors"]
    rows = (
        [
            each.encoder,
            each.traffic,
            "open" if each.in_flight is None else str(each.in_flight),
            f"{each.median('polyhead'):,.{2 if each.unit == 'p50 ms' else 0}f} {each.unit}",
            *(_ratios(each.ratios(of), spread=spread) for of in used),
            str(each.target or ""),
            {None: "", True: "yes", False: "no"}[each.met],
            f"{each.median('p50_ms'):,.1f} / {each.median('p99_ms'):,.1f}",
            f"{each.median('client_cores'):.2f} / {each.median('server_cores'):.2f}",
            str(sum(one.errors for one in each.samples)),
        ]
        for each in measurements
    )
    return columns, rows


def _ratios(ratios: Sequence[float], *, spread: bool) -> str:
    if not ratios:
        return ""
    return f"{median(ratios):.2f}" + (f" ({ratios[0]:.2f}–{ratios[-1]:.2f})" if spread else "")
