"""Writes a run's report into its folder."""

import json
from pathlib import Path

from polyhead_load.report.findings import Findings, find
from polyhead_load.report.page import page, svg
from polyhead_load.report.plots import draw
from polyhead_load.report.tables import as_csv, as_json
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.journal import no_room


def write_report(folder: RunFolder) -> tuple[Findings, Path]:
    """Writes report.html, report.json, report.csv and the pictures.

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
