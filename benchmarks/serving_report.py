"""What `make bench` found, as a table and as a page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from rich.table import Table

from load import Load

Against = Literal["limit", "at_once", "floor", "plain"]

HEADINGS: Mapping[Against, str] = {
    "limit": "× limit",
    "at_once": "× limit, runs at once",
    "floor": "× floor",
    "plain": "× without attention",
}


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a cell should reach."""

    of: Against | None = None
    least: float | None = None
    most: float | None = None
    plus_ms: float = 0.0
    """On top of `most`."""

    def __str__(self) -> str:
        if self.of is None:
            return ""
        bound = f"≥ {self.least}" if self.least is not None else f"≤ {self.most}"
        return f"{bound} {HEADINGS[self.of]}" + (f" + {self.plus_ms} ms" if self.plus_ms else "")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One round of a cell."""

    polyhead: float
    """Sequences a second, or p50 in ms for one in flight; so are the others."""
    limit: float | None
    """In-process, one run at a time, at the best batch size."""
    at_once: float | None
    """In-process, one run with one thread on each core, at the best batch size."""
    floor: float | None
    plain: float | None
    """The same without attention."""
    p50_ms: float
    p99_ms: float
    errors: int
    client_cores: float
    server_cores: float

    @classmethod
    def of(
        cls,
        load: Load,
        server_cores: float,
        polyhead: float,
        *,
        limit: float | None = None,
        at_once: float | None = None,
        floor: float | None = None,
        plain: float | None = None,
    ) -> "Sample":
        """Return what a load gave, and what it is held against."""
        return cls(
            polyhead=polyhead,
            limit=limit,
            at_once=at_once,
            floor=floor,
            plain=plain,
            p50_ms=load.percentile_ms(50),
            p99_ms=load.percentile_ms(99),
            errors=load.errors,
            client_cores=load.client_cpu_seconds / load.seconds,
            server_cores=server_cores,
        )

    def against(self, of: Against) -> float | None:
        """Return the ratio to one of the others."""
        other: float | None = getattr(self, of)
        return None if other is None else self.polyhead / other


@dataclass(frozen=True)
class Cell:
    """One row."""

    encoder: str
    traffic: str
    in_flight: int | None
    """None in open loop."""
    unit: str
    target: Target
    samples: Sequence[Sample]

    def middle(self, name: str) -> float:
        """Return the median of a field of the samples."""
        return float(median(getattr(sample, name) for sample in self.samples))

    def ratios(self, of: Against) -> list[float]:
        """Return each round's ratio, lowest first."""
        return sorted(ratio for sample in self.samples if (ratio := sample.against(of)) is not None)

    @property
    def met(self) -> bool | None:
        """Whether the median round reaches the target; None where there is none."""
        target = self.target
        if target.of is None:
            return None
        if target.least is not None:
            return median(self.ratios(target.of)) >= target.least
        allowed = (
            (target.most or 0.0) * getattr(sample, target.of) + target.plus_ms - sample.polyhead
            for sample in self.samples
        )
        return bool(median(allowed) >= 0)

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values."""
        ratios = {of: self.ratios(of) for of in HEADINGS}
        return asdict(self) | {"ratios": ratios, "target": str(self.target), "met": self.met}

    def row(self, *, spread: bool) -> list[str]:
        """Return a table's row: the median round, and with `spread` the lowest and highest ratio."""
        digits = 2 if self.unit == "p50 ms" else 0
        cells = [
            self.encoder,
            self.traffic,
            "open" if self.in_flight is None else str(self.in_flight),
            f"{self.middle('polyhead'):,.{digits}f} {self.unit}",
            *(_shown(self.ratios(of), spread=spread) for of in HEADINGS),
            str(self.target),
            {None: "", True: "yes", False: "no"}[self.met],
            f"{self.middle('p50_ms'):,.1f} / {self.middle('p99_ms'):,.1f}",
            f"{self.middle('client_cores'):.2f} / {self.middle('server_cores'):.2f}",
        ]
        errors = sum(sample.errors for sample in self.samples)
        return [*cells, str(errors)]


COLUMNS = (
    "encoder",
    "traffic",
    "in flight",
    "polyhead",
    *HEADINGS.values(),
    "target",
    "met",
    "p50 / p99 ms",
    "cores: client / server",
    "errors",
)


def table(cells: Iterable[Cell]) -> Table:
    """Return a table for the terminal."""
    shown = Table(*COLUMNS, title="polyhead against onnxruntime alone (limit) and an echo (floor)")
    for cell in cells:
        shown.add_row(*cell.row(spread=False))
    return shown


def page(cells: Sequence[Cell], health: Mapping[str, float], facts: Mapping[str, Any]) -> str:
    """Return the result as a page in Markdown."""
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
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(cell.row(spread=True)) + " |" for cell in cells),
    ]
    if health:
        lines += [
            "",
            f"Health checks, p50 / p99: {health['idle_p50_ms']:.1f} / {health['idle_p99_ms']:.1f} ms on an "
            f"idle server, {health['beside_p50_ms']:.1f} / {health['beside_p99_ms']:.1f} ms beside two "
            f"streams of replies of {health['reply_mib']:.0f} MiB.",
        ]
    return "\n".join(lines) + "\n"


def _shown(ratios: Sequence[float], *, spread: bool) -> str:
    if not ratios:
        return ""
    if not spread:
        return f"{median(ratios):.2f}"
    return f"{median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
