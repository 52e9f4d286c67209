"""The results of `make bench`: what should be reached, and the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from benchmarks.frame import Condition, Rounds, markdown_table, spell_number, spell_ratios

Reference = Literal["limit", "floor", "plain", "baseline"]

POLYHEAD = "polyhead"
HEADINGS: Mapping[Reference, str] = {
    "limit": "× limit",
    "floor": "× floor",
    "plain": "× without attention",
    "baseline": "× baseline",
}

INTRO = (
    "“×” is of latencies where p50 is given, else of sequences per second: the median round, with the lowest",
    "and the highest in brackets. Without client: what the server could answer if it had all cores, at the",
    "CPU time that it spends on a sequence now; an upper bound.",
)


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
class BenchRow(Rounds):
    """All rounds of one kind of traffic: polyhead, references, and candidates for the limit."""

    encoder: str
    traffic: str
    in_flight: int
    field: Literal["rate", "p50_ms"]
    """What is compared."""
    target: Target | None
    candidates: Sequence[str] = ()
    """What may be the limit."""
    share: float | None = None
    """Of the tokens in padded batches, those that exist; None where nothing is padded."""

    def name_of(self, reference: Reference) -> str | None:
        """Return whose samples are those of a reference, in all rounds alike; None if it was not measured."""
        if reference == "limit":
            return self.strongest(self.candidates, self.field) if self.candidates else None
        return reference if reference in self.samples else None

    def against(self, reference: Reference) -> list[float]:
        """Return each round's ratio to a reference, ascending; nothing if it was not measured."""
        name = self.name_of(reference)
        return [] if name is None else self.ratios(POLYHEAD, name, self.field)

    def without_client(self, cores: int) -> float | None:
        """Return the sequences per second that the server could answer if it had every core to itself.

        None with one request in flight, which does not fill the machine.
        """
        if self.in_flight == 1:
            return None
        return float(median(cores * each.rate / each.server_cores for each in self.samples[POLYHEAD]))

    def judge(self, target: Target) -> Condition:
        """Return whether the median round reaches a target."""
        name, ratios = self.name_of(target.of), self.against(target.of)
        if name is None:
            raise ValueError(f"the {target.of} must be measured, which is the target's")
        if target.least is not None:
            holds = median(ratios) >= target.least
        else:
            pairs = zip(self.values(POLYHEAD, self.field), self.values(name, self.field), strict=True)
            most = target.most or 0.0
            holds = median(most * other + target.plus_ms - own for own, other in pairs) >= 0
        load = f"{self.encoder}, {self.traffic}, {self.in_flight} in flight"
        return Condition(name=f"{load}: {target}", holds=holds, seen=spell_ratios(ratios, 3))


def targets(rows: Sequence[BenchRow]) -> list[Condition]:
    """Return what polyhead should reach."""
    return [row.judge(row.target) for row in rows if row.target]


def sections(rows: Sequence[BenchRow], *, cores: int) -> list[str]:
    """Return the page's table, on a machine of so many cores."""
    used = [of for of in HEADINGS if any(row.against(of) for row in rows)]
    return markdown_table(_cells(row, used, cores) for row in rows)


def _cells(row: BenchRow, used: Sequence[Reference], cores: int) -> dict[str, str]:
    limit, own = row.name_of("limit"), row.median(POLYHEAD, row.field)
    rate = row.without_client(cores)
    without = "" if rate is None else spell_number(rate)
    if limit is not None and rate is not None:
        without += f" = {rate / row.median(limit):.2f} × limit"
    p50, p99, client, server = (
        row.median(POLYHEAD, field) for field in ("p50_ms", "p99_ms", "client_cores", "server_cores")
    )
    return {
        "encoder": row.encoder,
        "traffic": row.traffic,
        "in flight": str(row.in_flight),
        "tokens that exist": "" if row.share is None else f"{row.share:.2f}",
        "polyhead": f"{spell_number(own)} {'seq/s' if row.field == 'rate' else 'p50 ms'}",
        **{HEADINGS[of]: spell_ratios(ratios) if (ratios := row.against(of)) else "" for of in used},
        "limit": "" if limit is None else f"{spell_number(row.median(limit, row.field))} ({limit})",
        "p50 / p99 ms": f"{p50:,.1f} / {p99:,.1f}",
        "cores: client / server": f"{client:.2f} / {server:.2f}",
        "without client": without,
        "errors": str(row.errors(POLYHEAD)),
    }
