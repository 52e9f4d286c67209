"""Draw the pictures of a report."""

import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from polyhead_load.records import REST
from polyhead_load.report.findings import SweepFindings
from polyhead_load.report.formatting import TOO_FEW, load_title
from polyhead_load.report.layout import Facet, PlotLayout
from polyhead_load.sweep.intervals import Interval

STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "polyhead",
    "text.parse_math": False,
}
"""matplotlib's settings for every picture."""
_WIDTH = 10.5
_HEIGHT = 3.1
_PARTS = {
    "send lag": "#bdbdbd",
    "parse": "#56B4E9",
    "queue": "#E69F00",
    "compute": "#0072B2",
    "serialise": "#009E73",
    REST: "#CC79A7",
}
_QUANTILES = {"p50": ("#0072B2", "o"), "p95": ("#E69F00", "s"), "p99": ("#D55E00", "^")}
_MOST_LOADS = 4
_FAR_APART = 30
"""Times the least latency in a panel from which on its axis is logarithmic."""

_DrawPanel = Callable[[Axes, Facet, str], bool]
"""Draw one facet of one column; return whether there was anything to draw."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One picture."""

    name: str
    title: str
    caption: str
    figure: Figure

    def svg(self) -> str:
        """Return the picture as SVG, the same for the same numbers."""
        text = io.StringIO()
        with mpl.rc_context(STYLE):
            self.figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()


def draw(findings: SweepFindings) -> list[Plot]:
    """Return all pictures for which there are numbers."""
    if not any(row.valid for row in findings.rows):
        return []
    layout = PlotLayout(findings)
    with mpl.rc_context(STYLE):
        plots = [_latency(layout), _split(layout)]
    return [plot for plot in plots if plot is not None]


def _latency(layout: PlotLayout) -> Plot | None:
    """Draw quantiles against what is compared."""

    def panel(axis: Axes, facet: Facet, load: str) -> bool:
        rows = layout.rows(facet, load)
        for name, (colour, marker) in _QUANTILES.items():
            known = [
                (layout.places[layout.value(row)], interval)
                for row in rows
                if (interval := row.quantiles[name])
            ]
            if not known:
                continue
            at, intervals = zip(*known, strict=True)
            _error_bars(axis, at, intervals, color=colour, marker=marker, label=name)
        bottom, top = axis.dataLim.intervaly
        if 0 < _FAR_APART * bottom < top:  # one far tail would flatten all others
            _plain_log(axis.yaxis)
        else:
            axis.set_ylim(bottom=0)
        _label_values(axis, layout)
        return bool(rows)

    left = layout.loads[_MOST_LOADS:]
    elsewhere = f" Not drawn here, but in the table: {', '.join(left)}." if left else ""
    return _panels(
        layout,
        layout.loads[:_MOST_LOADS],
        panel,
        x=layout.axis,
        y="latency, ms",
        name="latency",
        title=f"Latency against {layout.axis}",
        caption=f"Bars are 95 % intervals. A quantile with too few samples is not drawn.{elsewhere}",
    )


def _split(layout: PlotLayout) -> Plot | None:
    """Draw the parts of the mean latency."""
    loads = list(dict.fromkeys([layout.loads[0], layout.loads[-1]]))
    places = layout.places

    def panel(axis: Axes, facet: Facet, load: str) -> bool:
        rows = layout.rows(facet, load)
        left = dict.fromkeys(layout.places, 0.0)
        for part, colour in _PARTS.items():
            bars = [(layout.value(row), row.parts[part]) for row in rows if part in row.parts]
            axis.barh(
                [places[value] for value, _ in bars],
                [width for _, width in bars],
                left=[left[value] if width >= 0 else 0 for value, width in bars],
                color=colour,
                height=0.72,
                label="not accounted for" if part == REST else part,
            )
            for value, width in bars:
                left[value] += width
        axis.set_yticks(range(len(places)), list(map(layout.name, places)))
        axis.tick_params(labelleft=load == loads[0])
        axis.set_ylim(len(places) - 0.5, -0.5)
        axis.grid(visible=False, axis="y")
        return bool(rows)

    if not any(len(row.parts) > 1 for row in layout.findings.rows if row.load in loads):
        return None
    return _panels(
        layout,
        loads,
        panel,
        x="mean latency, ms",
        y=layout.axis,
        height=0.7 + 0.27 * len(places),
        name="split",
        title="Where the time goes",
        caption="Mean latency, by the server's own timings. What those do not account for is both ends' "
        "transport, and how long an answer waited for the generator or the server's event loop; it is the "
        "rest, so that all parts add up. Were it negative, the bar would reach below zero. "
        "Send lag is how late the generator was.",
    )


def _panels(
    layout: PlotLayout,
    loads: Sequence[str],
    draw_panel: _DrawPanel,
    *,
    x: str,
    y: str,
    height: float = _HEIGHT,
    **words: str,
) -> Plot | None:
    """Draw a grid of panels: a row for each facet with a valid run under the loads, a column for each load.

    `x` and `y` are the axes' titles, `height` is a panel's in inches, `words` are of the `Plot`.
    """
    facets = [facet for facet in layout.facets if any(layout.rows(facet, load) for load in loads)]
    if not facets:
        return None
    width = max(_WIDTH * min(1.0, 0.25 + 0.25 * len(loads)), 5.0)
    figure = Figure(figsize=(width, len(facets) * height + 0.5), layout="constrained")
    grid = figure.subplots(len(facets), len(loads), squeeze=False)
    for axes, facet in zip(grid, facets, strict=True):
        for axis, load in zip(axes, loads, strict=True):
            if not draw_panel(axis, facet, load):
                axis.clear()
                axis.text(0.5, 0.5, TOO_FEW, transform=axis.transAxes, ha="center", color="#888888")
                axis.set(xticks=[], yticks=[])
            axis.set_title("\n".join(filter(None, [facet.title, load_title(load)])))
        axes[0].set_ylabel(y)
    for axis in grid[-1]:
        axis.set_xlabel(x)
    _legend(figure)
    return Plot(figure=figure, **words)


def _legend(figure: Figure) -> None:
    """Add one legend for all panels."""
    entries: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(entries.values(), entries.keys(), loc="outside right upper")


def _error_bars(axis: Axes, at: Iterable[float], intervals: Sequence[Interval], **style: Any) -> None:
    middle = np.array([one.value for one in intervals])
    below, above = middle - [one.low for one in intervals], [one.high for one in intervals] - middle
    axis.errorbar(list(at), middle, yerr=np.maximum(0, [below, above]), linestyle="", capsize=3, **style)


def _label_values(axis: Axes, layout: PlotLayout) -> None:
    """Label the horizontal axis with what is compared."""
    ticks = list(map(layout.name, layout.places))
    axis.set_xlim(-0.5, len(ticks) - 0.5)
    slanted = sum(map(len, ticks)) > 24
    axis.set_xticks(
        range(len(ticks)), ticks, rotation=40 if slanted else 0, ha="right" if slanted else "center"
    )


def _plain_log(axis: XAxis | YAxis) -> None:
    """Make an axis logarithmic, with plain numbers as dense as it has room for. Call it after drawing."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    steps = (1, 1.5, 2, 3, 4, 5, 6, 8) if decades < 0.7 else (1, 2, 3, 5) if decades < 1.5 else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=steps if decades < 2.5 else (1,), numticks=100))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_locator(NullLocator())
