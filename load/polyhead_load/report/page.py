"""Write a run's report: one HTML page that needs nothing else, JSON and the pictures."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from polyhead_load.outputs import DEFAULT_OUTPUTS
from polyhead_load.report.choice import (
    Option,
    capacity_cell,
    choose,
    choose_lines,
    machines_cell,
)
from polyhead_load.report.findings import QUANTILES, SweepFindings, read_findings
from polyhead_load.report.formatting import (
    NO_DIFFERENCE,
    count,
    load_title,
    number,
    percent,
    ratio,
    size,
    spread,
)
from polyhead_load.report.plots import Plot, draw
from polyhead_load.report.tables import as_json
from polyhead_load.sweep.folder import RunFolder, writing
from polyhead_load.sweep.intervals import CONFIDENCE, FEWEST_BLOCKS, Interval
from polyhead_load.sweep.target import ServiceTarget, choose_target


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """What was written, and where."""

    findings: SweepFindings
    options: Sequence[Option]
    """From which to choose."""
    target: ServiceTarget | None
    """What for."""
    page: Path


def write_report(folder: RunFolder, **flags: float | str | None) -> SweepReport:
    """Write report.html, report.json and the pictures.

    Args:
        folder: Of the run.
        flags: Fields of a `ServiceTarget`, instead of the sweep's own.

    Raises:
        SweepError: It is no run's folder, or cannot be written.
    """
    findings = read_findings(folder)
    target = choose_target(findings.sweep.target, **flags)
    options = choose(findings, target)
    pictures = [(plot, plot.svg()) for plot in draw(findings)]
    plots = folder.path / "plots"
    with writing(plots):
        plots.mkdir(exist_ok=True)
    for plot, svg in pictures:
        folder.write(f"plots/{plot.name}.svg", svg)
    report = SweepReport(findings=findings, options=options, target=target, page=folder.path / "report.html")
    chosen = {
        "target": None if target is None else target.model_dump(mode="json"),
        "choose": [one.facts() for one in options],
    }
    folder.write("report.json", json.dumps(as_json(findings) | chosen, indent=1) + "\n")
    folder.write("report.html", _page(report, pictures))
    return report


def _page(report: SweepReport, pictures: list[tuple[Plot, str]]) -> str:
    findings = report.findings
    environment = Environment(
        loader=PackageLoader("polyhead_load.report", "."),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = (unbroken, with_code, number, count, percent, size, spread, load_title)
    environment.filters |= {each.__name__: each for each in formats}
    return environment.get_template("page.html").render(
        findings=findings,
        sweep=findings.sweep,
        facts={name: {} for name in ("skipped", "families", "fingerprint", "hashes")} | dict(findings.facts),
        version=version("polyhead"),
        summary=summary(findings),
        quantiles=list(QUANTILES),
        sections=[
            (load, [row for row in findings.rows if row.load == load]) for load in findings.sweep.loads
        ],
        pictures=[(plot, base64.b64encode(svg.encode()).decode()) for plot, svg in pictures],
        constants=_constants(findings),
        ratio_cell=_ratio_cell,
        ratios=any(row.ratios for row in findings.rows),
        options=report.options,
        target=report.target,
        choice=choose_lines(report.options, report.target),
        machines_cell=machines_cell,
        capacity_cell=capacity_cell,
    )


def with_code(text: str) -> Markup:
    """Return a sentence as HTML, with what stands between backticks as code, if they are in pairs."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return unbroken(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else unbroken(part) for at, part in enumerate(parts)
    )


def unbroken(text: str) -> Markup:
    """Keep names and intervals on one line; browsers break them at hyphens and dashes."""
    return Markup().join(
        Markup('<span class="whole">{}</span>').format(part) if re.search("[-–]", part) else part
        for part in re.split(r"(\s+)", text)
    )


def summary(findings: SweepFindings) -> list[str]:
    """Return the findings in sentences."""
    lines = []
    if findings.sweep.blocks < FEWEST_BLOCKS:
        lines.append(
            f"There are fewer than {FEWEST_BLOCKS} blocks: intervals know nothing of how the machine differs "
            "from one to the next, and nothing can be compared."
        )
    lines += _counts(findings)
    if findings.missing:
        lines.append(f"{len(findings.missing)} of {len(findings.cells)} cells have not been measured.")
    if findings.void:
        lines.append(f"Void runs, which count for nothing: {len(findings.void)}.")
    if findings.overloaded:
        lines.append(
            f"Runs in which the server did not keep up: {len(findings.overloaded)}. They count, with what "
            "was answered; what was not would have taken longer."
        )
    return lines


def _counts(findings: SweepFindings) -> Iterator[str]:
    """Count the ratios that differ from 1, and how many would by chance."""
    for name in QUANTILES:
        ratios = [interval for row in findings.rows if (interval := row.ratios.get(name))]
        if ratios:
            yield (
                f"{len(ratios)} cells were compared with {findings.baseline} at {name}: "
                f"{sum(1.0 in interval for interval in ratios)} show {NO_DIFFERENCE} (this run cannot tell), "
                f"{sum(interval.low > 1 for interval in ratios)} are slower, "
                f"{sum(interval.high < 1 for interval in ratios)} are faster. Were there no differences, "
                f"about {(1 - CONFIDENCE) * len(ratios):.2g} of {len(ratios)} would still show one, "
                "by chance."
            )


def _ratio_cell(interval: Interval) -> tuple[str, str, str]:
    """Return a ratio, its interval and whether that is slower, faster or no measurable difference."""
    kind = "same" if 1.0 in interval else "slower" if interval.low > 1 else "faster"
    return *ratio(interval), kind


def _constants(findings: SweepFindings) -> Mapping[str, str]:
    """Return what is the same in all cells, and how it was measured."""
    sweep, facts = findings.sweep, findings.facts
    valid = [one for row in findings.rows for one in row.valid]
    same = {name: ", ".join(sweep.labels(name)) for name in ("tokens", "batch", "outputs")}
    same |= dict.fromkeys(findings.sweep.varied, "")
    encoders = [about.get("encoder", {}) for about in facts.get("families", {}).values()] or [{}]
    shared = [
        f"{name} = {value}"
        for name, value in encoders[0].items()
        if all(encoder.get(name) == value for encoder in encoders)
    ]
    words = {
        "encoder": ", ".join(shared),
        "T, tokens": same["tokens"],
        "B, sequences in a request": same["batch"],
        "outputs, what is fetched": same["outputs"].replace(
            str(DEFAULT_OUTPUTS), "the default: pooled, else logits, else output"
        ),
        "runs on": ", ".join(sorted(set(facts.get("providers", {}).values()))),
        "server": facts.get("server", ""),
        "measured": f"{sweep.blocks} blocks of {sweep.seconds:g} s for each cell, seed {sweep.seed}",
        "gates": ", ".join(f"{name} {value:g}" for name, value in sweep.gates.model_dump().items()),
        "generator's priority": ", ".join(
            sorted({one.generator_priority for one in valid if one.generator_priority})
        ),
    }
    return {name: value for name, value in words.items() if value}
