"""The rows of a report for the terminal, as CSV and as JSON."""

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from polyhead_load.report.findings import QUANTILES, Findings, Row
from polyhead_load.report.words import TOO_FEW, described, factor, milliseconds, of
from polyhead_load.sweep.spec import Dimension

# To measure a table; it must only be wide enough for any.
_ANY = Console(width=10_000)
_MS = [f"{name} ms" for name in QUANTILES]


def terminal(findings: Findings, *, width: int) -> Table:
    """Return the headline table, in lines of at most `width` characters where that is 80 or more.

    Where there is no room for a column each, loads head their rows, counts share a column, and intervals are
    in a second line.
    """
    wide = _wide(findings)
    return wide if Measurement.get(_ANY, _ANY.options, wide).maximum <= width else _narrow(findings)


def _wide(findings: Findings) -> Table:
    varied = findings.varied or ["family"]
    ratio = f"p50 against {baseline_name(findings)}"
    columns = ["load", *varied, "blocks", "void", "overloaded", "requests", *_MS, ratio]
    table = Table(*columns, title=findings.sweep.title, title_justify="left")
    load = None
    for row in findings.rows:
        if load is not None and row.load != load:
            table.add_section()
        load = row.load
        table.add_row(row.load, *(row.labels[name] for name in varied), *_cells(row, findings))
    return table


def _narrow(findings: Findings) -> Table:
    title = f"{findings.sweep.title}; ratios of p50 are to {baseline_name(findings)}"
    table = narrow(title, "cell", "blocks", *_MS, "p50 ratio")
    load = None
    for row in findings.rows:
        if row.load != load:
            load = row.load
            table.add_section()
            table.add_row(f"[bold]{load}[/]")
        table.add_row(_name(row, findings), *_narrow_cells(row, findings))
    return table


def narrow(title: str, first: str, *others: str) -> Table:
    """Return a table for few characters; what the last column says may take several lines."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others[:-1]:
        table.add_column(name, no_wrap=True)
    table.add_column(others[-1], min_width=13)
    return table


def _narrow_cells(row: Row, findings: Findings) -> list[str]:
    counts = {"void": len(row.void), "overl.": len(row.overloaded)}
    runs = [f"{len(row.valid)} of {findings.sweep.blocks}"] if row.valid else []
    runs += [f"{count} {what}" for what, count in counts.items() if count]
    if not row.valid:
        return ["\n".join(runs)]
    against = "baseline" if findings.is_baseline(row) else row.uncompared
    return [
        "\n".join(runs),
        *(stacked(milliseconds(row.quantiles[name])) for name in QUANTILES),
        stacked(factor(row.ratios["p50"])) if row.ratios else against,
    ]


def _name(row: Row, findings: Findings) -> str:
    """Return what a row is of: a line for each dimension that varies."""
    return "\n".join(described(name, row.labels[name]) for name in findings.varied or ["family"])


def stacked(text: str) -> str:
    """Put a number's interval in a line of its own."""
    return text.replace(" (", "\n(")


def reasons(findings: Findings) -> list[str]:
    """Return what the table cannot say: why runs are void or overloaded, and what is missing.

    A line for each reason, the most frequent first.
    """
    said = _counted("void", (reason for one in findings.void for reason in one.void))
    said += _counted("overloaded", (reason for one in findings.overloaded for reason in one.overloaded))
    said += [f"skipped: {what}: {why}" for what, why in findings.facts.get("skipped", {}).items()]
    if findings.missing:
        said.append(f"{len(findings.missing)} of {len(findings.cells)} cells have not been measured")
    return said


def _counted(what: str, every: Iterable[str]) -> list[str]:
    # Numbers differ from run to run, the kind of reason does not: the first stands for its kind.
    kinds: dict[str, list[str]] = {}
    for reason in every:
        kinds.setdefault(re.sub(r"\d[\d.,]*", "", reason), []).append(reason)
    said = []
    for reasons_ in sorted(kinds.values(), key=len, reverse=True):
        times = "once" if len(reasons_) == 1 else f"{len(reasons_)} times"
        such = "" if len(set(reasons_)) == 1 else ", such as"
        said.append(f"{what} {times}{such}: {reasons_[0]}")
    return said


def _cells(row: Row, findings: Findings) -> list[str]:
    void = str(len(row.void) or "")
    if not row.valid:
        return ["void", void, *[""] * (3 + len(_MS))]
    against = "baseline" if findings.is_baseline(row) else row.uncompared
    return [
        f"{len(row.valid)} of {findings.sweep.blocks}",
        void,
        of(len(row.overloaded), len(row.valid)),
        f"{row.requests:,}",
        *(milliseconds(row.quantiles[name]) for name in QUANTILES),
        factor(row.ratios["p50"]) if row.ratios else against,
    ]


def baseline_name(findings: Findings) -> str:
    """Return what the others are compared with."""
    return ", ".join(f"{name} {value}" for name, value in findings.sweep.compared.items()) or "nothing"


def as_json(findings: Findings) -> dict[str, Any]:
    """Return everything that the page shows, and what a comparison of two runs needs."""
    return {
        "sweep": findings.sweep.model_dump(mode="json"),
        **findings.facts,
        "rows": [_row_facts(row, findings) for row in findings.rows],
        "capacities": [
            {"configuration": list(key), **capacity.facts()} for key, capacity in findings.capacities.items()
        ],
        "missing": [list(key) for key in findings.missing],
        "void": [one.model_dump(mode="json", exclude_defaults=True) for one in findings.void],
    }


def as_csv(findings: Findings) -> str:
    """Return one line of CSV for each cell."""
    text = io.StringIO()
    rows = [_flat(_row_facts(row, findings)) for row in findings.rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row_facts(row: Row, findings: Findings) -> dict[str, Any]:
    dimensions: Iterable[tuple[Dimension, str]] = row.labels.items()
    capacity = findings.capacities.get(row.key[:-1])
    return {
        **dict(dimensions),
        "load": row.load,
        "requests": row.requests,
        "valid_blocks": len(row.valid),
        "void_runs": len(row.void),
        "overloaded_runs": len(row.overloaded),
        "is_baseline": findings.is_baseline(row),
        "offered_per_second": row.mean("rate"),
        "answered_per_second": row.mean("achieved"),
        "capacity_per_second": capacity and capacity.value,
        "ms": {name: _facts(interval) for name, interval in row.quantiles.items()},
        "ratio": {name: _facts(interval) for name, interval in row.ratios.items()},
        "mean_parts_ms": dict(row.parts),
        "uncompared": row.uncompared,
        "send_lag_p99_ms": row.send_lag_p99_ms,
        "generator_cpu": row.mean("generator_cpu"),
        "server_cpu": row.mean("server_cpu"),
        "foreign_cpu": row.mean("foreign_cpu"),
        "steal": row.mean("steal"),
        "server_mib": row.mean("server_mib"),
        "request_bytes": row.mean("request_bytes"),
        "reply_bytes": row.mean("reply_bytes"),
        "blocks": [
            {"block": one.block, **{name: getattr(one, f"{name}_ms") for name in QUANTILES}}
            for one in row.valid
        ],
        "reasons": list(row.reasons),
        "overloaded": [list(one.overloaded) for one in row.overloaded],
    }


def _facts(interval: Any) -> Any:
    return TOO_FEW if interval is None else interval.facts()


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    """Turn nested tables into columns; what has no fixed number of columns is left to the JSON."""
    flat: dict[str, Any] = {}
    for name, value in facts.items():
        if name in {"blocks", "reasons", "overloaded"}:
            continue
        if name in {"ms", "ratio"}:
            for quantile in QUANTILES:
                interval = value.get(quantile)
                for end in ("value", "low", "high"):
                    flat[f"{name}_{quantile}_{end}"] = interval[end] if isinstance(interval, dict) else ""
        elif isinstance(value, dict):
            for part, size in value.items():
                flat[f"{name}_{part.replace(' + ', '_').replace(' ', '_')}"] = size
        else:
            flat[name] = value
    return flat
