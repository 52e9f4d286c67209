"""The rows of a report for the terminal, as CSV and as JSON."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.table import Table

from polyhead_load.report.findings import Findings
from polyhead_load.report.rows import QUANTILES, Row
from polyhead_load.report.words import factor, milliseconds, of
from polyhead_load.sweep.spec import Dimension

_MS = [f"{name} ms" for name in QUANTILES]


def terminal(findings: Findings) -> Table:
    """The headline table."""
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


def reasons(findings: Findings) -> list[str]:
    """What the table cannot say: why runs are void or overloaded, and what is missing.

    A line for each reason, the most frequent first.
    """
    said = _counted("void", (reason for one in findings.void for reason in one.void))
    said += _counted("overloaded", (reason for one in findings.overloaded for reason in one.overloaded))
    said += [f"skipped: {what}: {why}" for what, why in findings.facts.get("skipped", {}).items()]
    if findings.missing:
        said.append(f"{len(findings.missing)} of {len(findings.cells)} cells have not been measured")
    return said


def _counted(what: str, every: Iterable[str]) -> list[str]:
    # Numbers differ from run to run, the kind of reason does not.
    kinds = Counter(re.sub(r"[\d.,]+", "…", reason) for reason in every)
    return [f"{what} {count} times: {reason}" for reason, count in kinds.most_common()]


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
    """What the others are compared with."""
    return ", ".join(f"{name} {value}" for name, value in findings.sweep.compared.items()) or "nothing"


def as_json(findings: Findings) -> dict[str, Any]:
    """Everything that the page shows, and what a comparison of two runs needs."""
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
    """One line for each cell."""
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
    return "too few samples" if interval is None else interval.facts()


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    """Tables within become columns; what has no fixed number of columns is left to the JSON."""
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
