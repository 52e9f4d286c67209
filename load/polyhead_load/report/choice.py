"""Say what there is to choose from: what each configuration can answer, and what it costs beside time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from rich.table import Table

from polyhead_load.report.findings import Capacity, Findings
from polyhead_load.report.formatting import count, described, number, size, spread
from polyhead_load.report.tables import compact_table
from polyhead_load.sweep.spec import DIMENSIONS, Dimension


@dataclass(frozen=True, kw_only=True)
class Option:
    """A configuration that one may choose."""

    labels: Mapping[Dimension, str]
    capacity: Capacity | None
    parameters: int | None
    reply_bytes: float | None
    """Mean size of a reply."""

    def facts(self) -> dict[str, Any]:
        """Return the option as JSON values."""
        interval = self.capacity and self.capacity.interval
        return {
            **{str(name): label for name, label in self.labels.items()},
            "capacity_per_second": self.capacity and self.capacity.value,
            "capacity_interval": interval and interval.facts(),
            "parameters": self.parameters,
            "reply_bytes": self.reply_bytes,
        }


def choose(findings: Findings) -> list[Option]:
    """Return the configurations of a sweep, in its order."""
    families = findings.facts.get("families", {})

    def option(labels: Mapping[Dimension, str]) -> Option:
        measured = [*findings.capacities, *findings.rows]
        sizes = [one.mean("reply_bytes") for one in measured if one.labels == labels]
        known = [each for each in sizes if each is not None]
        return Option(
            labels=labels,
            capacity=next((one for one in findings.capacities if one.labels == labels), None),
            parameters=families.get(labels["family"], {}).get("parameters"),
            reply_bytes=fmean(known) if known else None,
        )

    return [
        option(dict(zip(DIMENSIONS, labels, strict=True)))
        for labels in product(*map(findings.sweep.labels, DIMENSIONS))
    ]


def choose_table(options: Sequence[Option], varied: Sequence[Dimension]) -> Table:
    """Return the table to choose from, which fits into 80 columns."""
    table = compact_table("Choose", "configuration", "capacity/s", "param.", "reply", min_width=8)
    for one in options:
        name = "\n".join(described(dimension, one.labels[dimension]) for dimension in varied)
        value, ends = capacity_cell(one)
        capacity = f"{value}\n({ends})" if ends else value
        table.add_row(name, capacity, count(one.parameters), size(one.reply_bytes))
    return table


def capacity_cell(one: Option) -> tuple[str, str]:
    """Return the requests a second that a configuration can answer, and their interval."""
    if one.capacity is None:
        return "", ""
    return number(one.capacity.value), spread(one.capacity.interval) if one.capacity.interval else ""
