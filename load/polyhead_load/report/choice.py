"""Say which configurations hold a rate within a limit on p99, and on how many machines.

**Machines** = rate / (capacity * (1 - headroom)), rounded up, with the lower end of the capacity's interval.
A configuration *holds* the target if that is one machine.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any, Literal

from rich.table import Table

from polyhead_load.report.findings import Capacity, SweepFindings, Throughput
from polyhead_load.report.formatting import count, described, number, size, spread
from polyhead_load.report.tables import compact_table
from polyhead_load.sweep.intervals import FEWEST_BLOCKS, Interval
from polyhead_load.sweep.spec import DIMENSIONS, Dimension
from polyhead_load.sweep.target import ServiceTarget

_WORKLOAD: tuple[Dimension, ...] = ("tokens", "batch", "outputs")
"""Given by the callers; configurations are compared within each."""

Verdict = Literal["holds", "close", "no", "never", "uncertain", "not known", ""]
"""Whether one machine holds the target. Close: it may, but not with the headroom, or not surely. No: it takes
more. Never: no rate keeps the limit. Uncertain: the interval is too wide to say how many it takes. Empty: no
rate is wanted."""

_WIDEST = 3
"""How many times the interval's lower end the capacity may be, for a number of machines to mean something."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A configuration that one may choose."""

    labels: Mapping[Dimension, str]
    target: ServiceTarget | None
    capacity: Interval | None
    """The largest rate that holds the target's limit, in requests a second; None where it is not known."""
    throughput: Throughput | None
    parameters: int | None
    reply_bytes: float | None
    """Mean size of a reply."""

    @property
    def machines(self) -> int | None:
        """Return how many machines the target's rate takes; None where it cannot be said."""
        if self.target is None or self.target.rate is None or self.capacity is None or not self.capacity.low:
            return None
        machines = math.ceil(self.target.rate / (self.capacity.low * (1 - self.target.headroom)))
        return None if machines > 1 and self._is_wide else machines

    @property
    def _is_wide(self) -> bool:
        """Return whether rounds found so different capacities that their interval says next to nothing."""
        return self.capacity is not None and _WIDEST * self.capacity.low < self.capacity.value

    @property
    def verdict(self) -> Verdict:
        """Return whether one machine holds the target."""
        if self.target is None:
            return ""
        if self.capacity is None:
            return "not known"
        if not self.capacity.value:
            return "never"
        if self.target.rate is None:
            return ""
        return self._verdict_on(self.target.rate, self.capacity)

    def _verdict_on(self, rate: float, capacity: Interval) -> Verdict:
        if self.machines == 1:
            return "holds"
        if self._is_wide:
            return "uncertain"
        return "close" if rate <= capacity.high else "no"

    def facts(self) -> dict[str, Any]:
        """Return the option as JSON values; `high` is left out where it is infinite."""
        facts = {} if self.capacity is None else self.capacity.facts()
        return {
            **{str(name): label for name, label in self.labels.items()},
            "verdict": self.verdict,
            "machines": self.machines,
            "capacity_per_second": {name: one for name, one in facts.items() if math.isfinite(one)} or None,
            "throughput_per_second": self.throughput and self.throughput.value,
            "parameters": self.parameters,
            "reply_bytes": self.reply_bytes,
        }


def choose(findings: SweepFindings, target: ServiceTarget | None) -> list[Option]:
    """Return the configurations of a sweep, by workload, and of each those with the most capacity first."""
    families = findings.facts.get("families", {})
    searched: list[Capacity] = [one for one in findings.capacities if target and one.load == target.load]

    def option(labels: Mapping[Dimension, str]) -> Option:
        measured = [one for one in (*findings.throughputs, *searched, *findings.rows) if one.labels == labels]
        sizes = [bytes_ for one in measured if (bytes_ := one.mean("reply_bytes")) is not None]
        return Option(
            labels=labels,
            target=target,
            capacity=next((one.interval for one in searched if one.labels == labels), None),
            throughput=next((one for one in findings.throughputs if one.labels == labels), None),
            parameters=families.get(labels["family"], {}).get("parameters"),
            reply_bytes=fmean(sizes) if sizes else None,
        )

    values = {name: findings.sweep.labels(name) for name in DIMENSIONS}
    options = [option(dict(zip(DIMENSIONS, labels, strict=True))) for labels in product(*values.values())]
    return sorted(
        options,
        key=lambda one: (
            *(values[name].index(one.labels[name]) for name in _WORKLOAD),
            -(one.capacity.value if one.capacity else 0.0),
        ),
    )


def choose_table(
    options: Sequence[Option], varied: Sequence[Dimension], target: ServiceTarget | None
) -> Table:
    """Return the table to choose from, which fits into 80 columns."""
    title = "Choose" if target is None else f"Choose: {target}"
    asked = [] if target is None else ["capacity/s"]
    asked = ["machines", *asked] if target and target.rate else asked
    table = compact_table(title, "configuration", *asked, "throughput/s", "param.", "reply", min_width=8)
    for one in options:
        name = "\n".join(described(dimension, one.labels[dimension]) for dimension in varied)
        cells = {"machines": "\n".join(machines_cell(one)), "capacity/s": _stacked(*capacity_cell(one))}
        throughput = number(one.throughput.value if one.throughput else None)
        about = [throughput, count(one.parameters), size(one.reply_bytes)]
        table.add_row(name, *(cells[column] for column in asked), *about)
    return table


def machines_cell(one: Option) -> tuple[str, str]:
    """Return how many machines the rate takes, and whether one holds it."""
    return "–" if one.machines is None else f"{one.machines:,}", "" if one.verdict == "no" else one.verdict


def capacity_cell(one: Option) -> tuple[str, str]:
    """Return the capacity, and its interval."""
    if one.capacity is None or not one.capacity.value:
        return one.verdict, ""
    if math.isinf(one.capacity.high):
        return f"≥ {number(one.capacity.low)}", ""
    return number(one.capacity.value), spread(one.capacity)


def choose_lines(options: Sequence[Option], target: ServiceTarget | None) -> list[str]:
    """Return how many configurations hold the target, and what the table's words mean."""
    if target is None:
        return []
    said = [one.verdict for one in options]
    lines = []
    if target.rate is not None:
        lines.append(
            f"{said.count('holds')} of {len(said)} hold {target} on one machine, with {target.headroom:.0%} "
            "headroom"
        )
        lines.append("each was measured alone: `polyhead load --model a,b` loads several families together")
    if "close" in said:
        lines.append(
            "close: the rate is within the capacity or its interval, but not with "
            f"{target.headroom:.0%} headroom"
        )
    if "uncertain" in said:
        lines.append(
            f"uncertain: the capacity is more than {_WIDEST} times its interval's lower end, because its "
            "rounds contradict each other: measure again, into another --out, where nothing else runs, or "
            "longer (--rounds, --search-seconds)"
        )
    if "not known" in said:
        lines.append(
            f"not known: fewer than {FEWEST_BLOCKS} rounds of a search for {target.load} have been measured "
            "without being void; the sweep with this limit measures them"
        )
    return lines


def _stacked(value: str, ends: str) -> str:
    return f"{value}\n({ends})" if ends else value
