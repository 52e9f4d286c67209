"""Write findings as a table for the terminal and as JSON."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from polyhead_load.report.findings import Row, SweepFindings
from polyhead_load.report.formatting import (
    TOO_FEW,
    described,
    factor,
    milliseconds,
)
from polyhead_load.sweep.intervals import FEWEST_BLOCKS, Interval

_SHOWN = ("p50", "p99")
"""The quantiles for which 80 columns have room, beside names; the page has all."""


def terminal_table(findings: SweepFindings) -> Table:
    """Return the headline table, which fits into 80 columns."""
    title = findings.sweep.title
    if _has_ratios(findings):
        title += f"; ratios of p50 are to {findings.baseline}"
    columns = [f"{name} ms" for name in _SHOWN] + ["p50 ratio"] * _has_ratios(findings)
    table = compact_table(title, "cell", "blocks", *columns)
    load = None
    for row in findings.rows:
        if row.load != load:
            load = row.load
            table.add_section()
            table.add_row(f"[bold]{load}[/]")
        name = "\n".join(described(dimension, row.labels[dimension]) for dimension in findings.sweep.varied)
        table.add_row(name, *_cells(row, findings))
    return table


def compact_table(title: str, first: str, *others: str, min_width: int = 13) -> Table:
    """Return a table with narrow columns, of which the last may wrap."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others[:-1]:
        table.add_column(name, no_wrap=True)
    table.add_column(others[-1], min_width=min_width)
    return table


def stacked(text: str) -> str:
    """Put a number's interval on a line of its own."""
    return text.replace(" (", "\n(")


def _cells(row: Row, findings: SweepFindings) -> list[str]:
    counts = {"void": len(row.void), "overl.": len(row.overloaded)}
    runs = [f"{len(row.valid)} of {findings.sweep.blocks}"] if row.valid else []
    runs += [f"{count} {what}" for what, count in counts.items() if count]
    if not row.valid:
        return ["\n".join(runs)]
    cells = ["\n".join(runs), *(stacked(milliseconds(row.quantiles[name])) for name in _SHOWN)]
    if _has_ratios(findings):
        against = "baseline" if findings.is_baseline(row.labels) else row.uncompared
        cells.append(stacked(factor(row.ratios["p50"])) if row.ratios else against)
    return cells


def _has_ratios(findings: SweepFindings) -> bool:
    """Return whether there are blocks enough for ratios."""
    return findings.sweep.blocks >= FEWEST_BLOCKS


def remarks(findings: SweepFindings) -> list[str]:
    """Return what the table leaves out: why runs are void or overloaded, and what is missing.

    One line for each kind of reason, the most frequent first.
    """
    lines = _counted("void", (reason for one in findings.void for reason in one.void))
    lines += _counted("overloaded", (reason for one in findings.overloaded for reason in one.overloaded))
    lines += [f"skipped: {what}: {why}" for what, why in findings.facts.get("skipped", {}).items()]
    if findings.missing:
        lines.append(f"{len(findings.missing)} of {len(findings.cells)} cells have not been measured")
    return lines


def _counted(what: str, reasons: Iterable[str]) -> list[str]:
    # Reasons of one kind differ in their numbers.
    kinds = Counter(re.sub(r"\d[\d.,]*", "…", reason) for reason in reasons)
    return [f"{count} {what}: {kind}" for kind, count in kinds.most_common()]


def as_json(findings: SweepFindings) -> dict[str, Any]:
    """Return everything that the page shows."""
    return {
        "sweep": findings.sweep.model_dump(mode="json"),
        **findings.facts,
        "rows": [_facts(row) for row in findings.rows],
        "searches": [
            {
                "configuration": list(one.labels.values()),
                "load": one.load,
                "rounds": [[trial._asdict() for trial in each.trials] for each in one.rounds],
            }
            for one in findings.capacities
        ],
        "missing": [list(key) for key in findings.missing],
        "void": [one.model_dump(mode="json", exclude_defaults=True) for one in findings.void],
    }


def interval_facts(interval: Interval | None) -> dict[str, float] | str:
    """Return an interval as JSON values, or TOO_FEW."""
    return TOO_FEW if interval is None else interval.facts()


def _facts(row: Row) -> dict[str, Any]:
    return {
        **{str(name): label for name, label in row.labels.items()},
        "load": row.load,
        "ms": {name: interval_facts(interval) for name, interval in row.quantiles.items()},
        "ratio": {name: interval_facts(interval) for name, interval in row.ratios.items()},
        "uncompared": row.uncompared,
        "mean_parts_ms": dict(row.parts),
        "send_lag_p99_ms": row.send_lag_p99_ms,
        "runs": [one.model_dump(mode="json", exclude_defaults=True) for one in (*row.valid, *row.void)],
    }
