"""The page: everything about a run in one file, pictures included."""

import base64
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from polyhead_load.report.findings import QUANTILES, Capacity, Findings, Row, find
from polyhead_load.report.layout import style
from polyhead_load.report.plots import REST, Plot, draw, kernel_of
from polyhead_load.report.tables import as_csv, as_json, baseline_name
from polyhead_load.report.words import (
    NO_DIFFERENCE,
    TOO_FEW,
    described,
    factor,
    load_title,
    number,
    of,
    size,
    spread,
)
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.intervals import CONFIDENCE, FEWEST_BLOCKS, Interval
from polyhead_load.sweep.journal import Measurement, no_room
from polyhead_load.sweep.spec import DIMENSIONS


def write_report(folder: RunFolder) -> tuple[Findings, Path]:
    """Write report.html, report.json, report.csv and the pictures.

    Returns:
        What was found, and the path of the page.

    Raises:
        SweepError: The folder is none of a run, or cannot be written.
    """
    findings = find(folder)
    pictures = {plot.name: (plot, svg(plot)) for plot in draw(findings)}
    plots = folder.path / "plots"
    try:
        plots.mkdir(exist_ok=True)
    except OSError as error:
        raise no_room(plots, error) from error
    for name, (_, text) in pictures.items():
        folder.write(f"plots/{name}.svg", text)
    folder.write("report.json", json.dumps(as_json(findings), indent=1) + "\n")
    folder.write("report.csv", as_csv(findings))
    folder.write("report.html", page(findings, pictures))
    return findings, folder.path / "report.html"


def svg(plot: Plot) -> str:
    """Return a picture as SVG, the same for the same numbers."""
    text = io.StringIO()
    with style():
        plot.figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def page(findings: Findings, pictures: Mapping[str, tuple[Plot, str]]) -> str:
    """Return the page as HTML.

    Args:
        findings: Of the run.
        pictures: Name → picture, and its SVG.
    """
    environment = Environment(
        loader=PackageLoader("polyhead_load.report", "."),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = unbroken
    sweep, facts = findings.sweep, findings.facts
    return environment.get_template("page.html").render(
        title=sweep.title,
        about=sweep.about,
        version=version("polyhead"),
        summary=summary(findings),
        baseline=baseline_name(findings),
        varied=findings.varied or ["family"],
        quantiles=list(QUANTILES),
        sections=[
            {
                "load": load,
                "title": load_title(load),
                "rows": [_row(row, findings) for row in findings.rows if row.load == load],
            }
            for load in sweep.loads
        ],
        pictures=[
            {
                "title": plot.title,
                "caption": plot.caption,
                "source": "data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode(),
            }
            for plot, text in pictures.values()
        ],
        void=[
            {"cell": ", ".join(one.cell), "block": one.block or "capacity", "reasons": one.void}
            for one in findings.void
        ],
        overloaded=[
            {"cell": ", ".join(one.cell), "block": one.block, "reasons": one.overloaded}
            for one in findings.overloaded
        ],
        capacities=[_capacity(key, one, findings) for key, one in findings.capacities.items()],
        missing=[", ".join(key) for key in findings.missing],
        skipped=facts.get("skipped", {}),
        graphs=_graphs(facts.get("graphs", {})),
        constants=_constants(findings),
        families=facts.get("families", {}),
        fingerprint=facts.get("fingerprint", {}),
        hashes=facts.get("hashes", {}),
    )


def unbroken(text: str) -> Markup:
    """Keep names and intervals in one line, which browsers break at hyphens and dashes."""
    return Markup().join(
        Markup('<span class="whole">{}</span>').format(part) if re.search("[-–]", part) else part
        for part in re.split(r"(\s+)", text)
    )


def summary(findings: Findings) -> list[str]:
    """Return the findings in sentences."""
    said = []
    if findings.sweep.blocks < FEWEST_BLOCKS:
        said.append(
            f"There are fewer than {FEWEST_BLOCKS} blocks: intervals know nothing of how the machine differs "
            "from one to the next, and nothing can be compared."
        )
    said += _compared(findings)
    impossible = sum(row.parts.get(REST, 0) < 0 for row in findings.rows)
    if impossible:
        said.append(
            f"Cells in which the server says that it took longer than the answer did: {impossible}. "
            "Its timings are wrong there."
        )
    if findings.missing:
        said.append(f"{len(findings.missing)} of {len(findings.cells)} cells have not been measured.")
    if findings.void:
        said.append(f"Void runs, which count for nothing: {len(findings.void)}.")
    if findings.overloaded:
        said.append(
            f"Runs in which the server did not keep up: {len(findings.overloaded)}. They count, with what "
            "was answered; what was not would have taken longer."
        )
    return said


def _compared(findings: Findings) -> Iterator[str]:
    """Say at each quantile how many differ and how many would by chance; and then each that does."""
    for name in QUANTILES:
        ratios = [interval for row in findings.rows if (interval := row.ratios.get(name))]
        if ratios:
            same = sum(1.0 in interval for interval in ratios)
            by_chance = (1 - CONFIDENCE) * len(ratios)
            yield (
                f"{len(ratios)} cells were compared with {baseline_name(findings)} at {name}: "
                f"{same} show {NO_DIFFERENCE} (this run cannot tell), "
                f"{sum(interval.low > 1 for interval in ratios)} are slower, "
                f"{sum(interval.high < 1 for interval in ratios)} are faster. Were there no differences, "
                f"about {by_chance:.2g} of {len(ratios)} would still show one, by chance."
            )
    varied = findings.varied or ["family"]
    # T is said wherever a ratio is: it decides how much of a cell is attention.
    constant = "" if "tokens" in varied else f", {described('tokens', findings.sweep.labels('tokens')[0])}"
    for load in findings.sweep.loads:
        for name in QUANTILES:
            differing = [
                f"{', '.join(described(dimension, row.labels[dimension]) for dimension in varied)}: "
                f"{factor(interval)}"
                for row in findings.rows
                if row.load == load and (interval := row.ratios.get(name)) and 1.0 not in interval
            ]
            if differing:
                yield (
                    f"{name} with {load_title(load)}{constant}, times that of {baseline_name(findings)}: "
                    f"{'; '.join(differing)}."
                )


def _row(row: Row, findings: Findings) -> dict[str, Any]:
    return {
        "labels": [row.labels[name] for name in findings.varied or ["family"]],
        "baseline": findings.is_baseline(row),
        "blocks": f"{len(row.valid)} of {findings.sweep.blocks}",
        "void_runs": len(row.void) or "",
        "overloaded": of(len(row.overloaded), len(row.valid)),
        "requests": f"{row.requests:,}",
        "rate": number(row.mean("achieved")),
        "quantiles": [_interval(row.quantiles[name]) for name in QUANTILES],
        "ratios": [_ratio(row.ratios.get(name), row) for name in QUANTILES],
        "reply": size(row.mean("reply_bytes")),
        "request": size(row.mean("request_bytes")),
        "lag": number(row.send_lag_p99_ms),
        "generator": _share(row.mean("generator_cpu")),
        "server": number(row.mean("server_cpu")),
        "foreign": number(row.mean("foreign_cpu")),
        "steal": number(row.mean("steal")),
        "kernel": kernel_of(findings, row),
        "void": None if row.valid else "; ".join(row.reasons),
    }


def _capacity(key: Sequence[str], capacity: Capacity, findings: Findings) -> dict[str, Any]:
    """Return a configuration's capacity, and what its runs say of the harness."""
    labels = dict(zip(DIMENSIONS, key, strict=True))

    def mean(name: str) -> float | None:
        values = [value for one in capacity.runs if (value := getattr(one, name)) is not None]
        return float(np.mean(values)) if values else None

    return {
        "labels": [labels[name] for name in findings.varied or ["family"]],
        "value": f"{number(capacity.value)} ({number(capacity.low)}–{number(capacity.high)})",
        "runs": len(capacity.runs),
        "generator": _share(mean("generator_cpu")),
        **{name: number(mean(f"{name}_cpu")) for name in ("server", "foreign")},
        "steal": number(mean("steal")),
    }


def _interval(interval: Interval | None) -> dict[str, str]:
    if interval is None:
        return {"value": "", "note": TOO_FEW}
    return {"value": number(interval.value), "note": spread(interval)}


def _ratio(interval: Interval | None, row: Row) -> dict[str, str]:
    if interval is None:
        return {"value": "", "note": TOO_FEW if row.ratios else row.uncompared, "kind": ""}
    note = f"{interval.low:#.3g}–{interval.high:#.3g}"
    if 1.0 in interval:
        return {"value": "", "note": f"{NO_DIFFERENCE} ({note})", "kind": "same"}
    return {
        "value": f"{interval.value:#.3g}",
        "note": note,
        "kind": "slower" if interval.low > 1 else "faster",
    }


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _constants(findings: Findings) -> list[tuple[str, str]]:
    """Return what is the same in all cells, and how it was measured."""
    sweep, facts = findings.sweep, findings.facts
    same = {
        name: ", ".join(sweep.labels(name))
        for name in ("tokens", "batch", "attention")
        if name not in findings.varied
    }
    encoders = [about.get("encoder", {}) for about in facts.get("families", {}).values()]
    shared = {
        name: value
        for name, value in (encoders[0] if encoders else {}).items()
        if all(encoder.get(name) == value for encoder in encoders)
    }
    words = {
        "encoder": ", ".join(f"{name} = {value}" for name, value in shared.items()),
        "T, tokens": same.get("tokens", ""),
        "B, sequences in a request": same.get("batch", ""),
        "attention in the reply": same.get("attention", ""),
        "runs on": ", ".join(sorted(set(facts.get("providers", {}).values()))),
        "server": facts.get("server", ""),
        "measured": f"{sweep.blocks} blocks of {sweep.seconds:g} s for each cell, seed {sweep.seed}",
        "gates": ", ".join(f"{name} {value:g}" for name, value in sweep.gates.model_dump().items()),
        "not checked": _unchecked(findings),
        "generator's priority": _values(one.generator_priority for one in _valid(findings)),
        "begun": "; ".join(_session(session) for session in facts.get("sessions", []) if session),
    }
    return [(name, value) for name, value in words.items() if value]


def _valid(findings: Findings) -> list[Measurement]:
    return [one for row in findings.rows for one in row.valid]


def _unchecked(findings: Findings) -> str:
    """Name the gates that some runs had too few answers for."""
    counts = Counter(gate for one in _valid(findings) for gate in one.unchecked)
    runs = len(_valid(findings))
    return ", ".join(f"{gate}: in {count} of {runs} runs, too few answers" for gate, count in counts.items())


def _values(values: Iterable[str | None]) -> str:
    return ", ".join(sorted({value for value in values if value is not None}))


def _session(facts: Mapping[str, Any]) -> str:
    first, *others = facts.items()
    return ", ".join([str(first[1]), *(f"{name} {value}" for name, value in others)])


def _graphs(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of operators, the most frequent first: families with the same graph share a row."""
    if "problem" in found or not found:
        return {"problem": found.get("problem", ""), "rows": []}
    rows: dict[tuple[Any, ...], list[str]] = {}
    for family, kinds in found.items():
        for kind, graph in kinds.items():
            counts = sorted(graph["operators"].items(), key=lambda one: (-one[1], one[0]))
            operators = ", ".join(f"{count} {name}" for name, count in counts)
            rows.setdefault((kind, graph["kernel"], graph["optimised"], operators), []).append(family)
    return {
        "problem": "",
        "rows": [
            {
                "families": ", ".join(families),
                "graph": kind + ("" if optimised else ", as exported"),
                "kernel": kernel,
                "operators": operators,
            }
            for (kind, kernel, optimised, operators), families in rows.items()
        ],
    }
