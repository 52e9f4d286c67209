"""Draws the dashboard's panels from Prometheus' data, where there is no Grafana to do it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MultipleLocator
from tests.deploy.compose_file import ROOT

Series = list[dict[str, Any]]
Ask = Callable[..., Series]

COLUMNS, UNIT_INCHES = 24, (0.68, 0.3)


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana reads it."""
    path = ROOT / "deploy" / "grafana" / "dashboards" / "polyhead.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def fill_in(expression: str, *, seconds: int) -> str:
    """The query with the values that Grafana would put in."""
    for name, value in (
        ("$__rate_interval", "30s"),
        ("$__range", f"{seconds}s"),
        ("$model", ".*"),
        ("$instance", ".*"),
    ):
        expression = expression.replace(name, value)
    return expression


def draw(ask: Ask, out: Path, *, start: float, end: float) -> None:
    """Draws all panels.

    Args:
        ask: Asks Prometheus; see `Stack.ask`.
        out: The picture.
        start: When it begins, in seconds since the epoch.
        end: When it ends.
    """
    panels = dashboard()["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(COLUMNS * UNIT_INCHES[0], rows * UNIT_INCHES[1]), facecolor="white")
    for panel in panels:
        at = panel["gridPos"]
        left, bottom = at["x"] / COLUMNS, 1 - (at["y"] + at["h"]) / rows
        width, height = at["w"] / COLUMNS, at["h"] / rows
        if panel["type"] == "row":
            figure.text(left + 0.004, bottom + 0.2 * height, panel["title"], fontsize=12, weight="bold")
            continue
        # Room for the axes, and for the title.
        below, above = 1.1 / rows, 1.2 / rows
        inner = (left + 0.045, bottom + below, width - 0.055, height - below - above)
        axes = figure.add_axes(inner)
        axes.set_title(panel["title"], fontsize=8, loc="left")
        _PANELS[panel["type"]](axes, panel, ask, start, end)
    figure.savefig(out, dpi=80)
    plt.close(figure)


def _named(legend: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        legend = legend.replace("{{" + name + "}}", value)
    return legend


def _series(axes: Axes, panel: dict[str, Any], ask: Ask, start: float, end: float) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults["custom"].get("stacking", {}).get("mode") == "normal"
    lines: list[tuple[str, list[float], list[float]]] = []
    for target in panel["targets"]:
        query = fill_in(target["expr"], seconds=round(end - start))
        for one in ask(query, start=str(start), end=str(end), step="2"):
            points = [(float(at) - start, float(value)) for at, value in one["values"] if value != "NaN"]
            if points:
                times, values = [at for at, _ in points], [value for _, value in points]
                lines.append((_named(target["legendFormat"], one["metric"]), times, values))
    below: dict[float, float] = {}
    for name, times, values in lines:
        if stacked:
            under = [below.get(at, 0.0) for at in times]
            over = [value + base for value, base in zip(values, under, strict=True)]
            below |= dict(zip(times, over, strict=True))
            axes.fill_between(times, under, over, alpha=0.4, label=name, linewidth=0.5)
        else:
            axes.plot(times, values, linewidth=1, label=name)
    axes.set_xlim(0, end - start)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=6)
    axes.xaxis.set_major_locator(MultipleLocator(60))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds / 60:.0f} min"))
    axes.yaxis.set_major_formatter(_formatter(defaults.get("unit")))
    axes.grid(alpha=0.3)
    if lines:
        axes.legend(fontsize=5, loc="upper right", ncols=2, framealpha=0.6)


def _stat(axes: Axes, panel: dict[str, Any], ask: Ask, start: float, end: float) -> None:
    (target,) = panel["targets"]
    result = ask(fill_in(target["expr"], seconds=round(end - start)), time=str(end))
    value = float(result[0]["value"][1]) if result else float("nan")
    text = _formatter(panel["fieldConfig"]["defaults"].get("unit"))(value, None)
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=15, transform=axes.transAxes)
    axes.set_axis_off()


def _bars(axes: Axes, panel: dict[str, Any], ask: Ask, start: float, end: float) -> None:
    (target,) = panel["targets"]
    found = ask(fill_in(target["expr"], seconds=round(end - start)), time=str(end))
    bars = {
        _named(target["legendFormat"], one["metric"]): float(one["value"][1])
        for one in found
        if one["value"][1] != "NaN"
    }
    axes.barh(sorted(bars), [bars[name] for name in sorted(bars)])
    axes.invert_yaxis()
    axes.tick_params(labelsize=6)
    axes.xaxis.set_major_formatter(_formatter(panel["fieldConfig"]["defaults"].get("unit")))


def _table(axes: Axes, panel: dict[str, Any], ask: Ask, start: float, end: float) -> None:
    (target,) = panel["targets"]
    hidden = {"__name__", "job"}
    found = ask(fill_in(target["expr"], seconds=round(end - start)), time=str(end))
    lines = ["  ".join(value for name, value in one["metric"].items() if name not in hidden) for one in found]
    axes.text(0, 1, "\n".join(lines), fontsize=6, va="top", family="monospace", transform=axes.transAxes)
    axes.set_axis_off()


def _formatter(unit: str | None) -> Any:
    if unit == "percentunit":
        return FuncFormatter(lambda value, _: f"{value:.1%}")
    if unit == "s":
        return FuncFormatter(lambda value, _: f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s")
    if unit == "bytes":
        return FuncFormatter(lambda value, _: f"{value / 2**20:.0f} MiB")
    return FuncFormatter(lambda value, _: f"{value:,.4g}")


_PANELS = {"timeseries": _series, "stat": _stat, "bargauge": _bars, "table": _table}
