"""The pictures of a report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from polyhead_load.report.findings import Findings, Row
from polyhead_load.report.layout import (
    Facet,
    Layout,
    empty,
    panels,
    plain_log,
    style,
    wrapped,
)
from polyhead_load.report.tables import baseline_name
from polyhead_load.report.words import TOO_FEW, load_title
from polyhead_load.sweep.spec import DIMENSIONS, parse_load

REST = "network + client"
"""The part of a latency that the server does not account for."""
_PARTS = {
    "send lag": "#bdbdbd",
    "parse": "#56B4E9",
    "queue": "#E69F00",
    "compute": "#0072B2",
    "serialise": "#009E73",
    REST: "#CC79A7",
}
_LINES = {"p50": ("#0072B2", "o"), "p95": ("#E69F00", "s"), "p99": ("#D55E00", "^")}
_LOADS = ("#0072B2", "#E69F00", "#D55E00", "#009E73")
_MARKERS = "osD^vP*X"


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One picture."""

    name: str
    title: str
    caption: str
    figure: Figure


def draw(findings: Findings) -> list[Plot]:
    """Return all pictures that the findings have something for."""
    layout = Layout(findings)
    if not any(row.valid for row in findings.rows):
        return []
    with style():
        return [plot for make in _ALL if (plot := make(layout)) is not None]


def _latency(layout: Layout) -> Plot | None:
    """Draw quantiles against what is compared."""
    loads = layout.shown_loads
    facets = [facet for facet in layout.facets if any(layout.rows(facet, load) for load in loads)]
    figure, grid = panels(len(facets), len(loads))
    for axes, facet in zip(grid, facets, strict=True):
        for axis, load in zip(axes, loads, strict=True):
            _latency_panel(axis, layout, layout.rows(facet, load))
            axis.set_title("\n".join(filter(None, [facet.title, load_title(load)])))
        axes[0].set_ylabel("latency, ms")
    for axis in grid[-1]:
        axis.set_xlabel(layout.axis)
    grid[0][0].legend(loc="best")
    return Plot(
        name="latency",
        title=f"Latency against {layout.axis}",
        caption="Bands are 95 % intervals. A quantile with too few samples is not drawn. "
        "Shapes of the p50 points tell attention operators apart, where there are several."
        + _left_out(layout),
        figure=figure,
    )


def _left_out(layout: Layout) -> str:
    """Name the loads that there is no room for."""
    left = [load for load in layout.findings.sweep.loads if load not in layout.shown_loads]
    return f" Not drawn here, but in the table: {', '.join(left)}." if left else ""


def _latency_panel(axis: Axes, layout: Layout, rows: Sequence[Row]) -> None:
    places = layout.places
    for name, (colour, marker) in _LINES.items():
        known = [(places[layout.value(row)], interval) for row in rows if (interval := row.quantiles[name])]
        if not known:
            continue
        at = [place for place, _ in known]
        low, high = [interval.low for _, interval in known], [interval.high for _, interval in known]
        middle = [interval.value for _, interval in known]
        if layout.heads:
            axis.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
            axis.plot(at, middle, color=colour, marker=marker, markersize=4, linewidth=1.2, label=name)
        else:  # names have no order that a line could follow
            errors = np.maximum(0, [np.subtract(middle, low), np.subtract(high, middle)])
            axis.errorbar(
                at, middle, yerr=errors, color=colour, fmt=marker, markersize=5, capsize=3, label=name
            )
    _mark_kernels(axis, layout, rows, places)
    axis.set_ylim(bottom=0)
    _name_values(axis, layout)


def _name_values(axis: Axes, layout: Layout) -> None:
    """Label the axis with what is compared."""
    places = list(layout.places.values())
    axis.set_xlim(min(places) - 0.5, max(places) + 0.5)
    ticks = [layout.tick(value) for value in layout.values]
    slanted = sum(map(len, ticks)) > 24
    axis.set_xticks(places, ticks, rotation=40 if slanted else 0, ha="right" if slanted else "center")


def _mark_kernels(
    axis: Axes, layout: Layout, rows: Sequence[Row], places: Mapping[tuple[str, ...], float]
) -> None:
    kernels = {row.key: kernel_of(layout.findings, row) for row in rows}
    kinds = sorted({kind for kind in kernels.values() if kind})
    if len(kinds) < 2:
        return
    for kind, marker in zip(kinds, _MARKERS, strict=False):
        known = [row for row in rows if kernels[row.key] == kind and row.quantiles["p50"]]
        axis.scatter(
            [places[layout.value(row)] for row in known],
            [interval.value for row in known if (interval := row.quantiles["p50"])],
            marker=marker,
            s=70,
            facecolors="none",
            edgecolors="#333333",
            linewidths=0.9,
            label=kind,
            zorder=3,
        )


def kernel_of(findings: Findings, row: Row) -> str:
    """Return the attention operator of a row's graph; empty where it is not known."""
    mode = next(mode for mode in findings.sweep.attention if mode.name == row.labels["attention"])
    graphs = findings.facts.get("graphs", {}).get(row.labels["family"], {})
    return str(graphs.get("fast" if mode.layers is None else "attention", {}).get("kernel", ""))


def _ratio(layout: Layout) -> Plot | None:
    """Draw quantiles against the baseline's, from the same blocks."""
    loads = layout.shown_loads
    names = ("p50", "p99")
    facets = [
        facet
        for facet in layout.facets
        if any(row.ratios.get("p50") for load in loads for row in layout.rows(facet, load))
    ]
    if not facets:
        return None
    figure, grid = panels(len(facets), len(names))
    for axes, facet in zip(grid, facets, strict=True):
        for axis, name in zip(axes, names, strict=True):
            axis.set_title(", ".join(filter(None, [facet.title, name])))
            if not _ratio_panel(axis, layout, facet, loads, name):
                empty(axis, TOO_FEW)
                continue
            axis.axhline(1, color="#555555", linewidth=0.9)
            axis.set_ylabel("times the baseline, log")
            plain_log(axis.yaxis)  # half and twice are equally far from 1
            _name_values(axis, layout)
    for axis in grid[-1]:
        axis.set_xlabel(layout.axis)
    handles = [
        Line2D([], [], marker=_marker(place), color=_LOADS[place], label=load_title(load))
        for place, load in enumerate(loads)
    ]
    figure.legend(handles=handles, loc="outside right upper")
    return Plot(
        name="ratio",
        title=f"Against {baseline_name(layout.findings)}",
        caption="Bars are 95 % intervals. One that reaches the line at 1 is no measurable difference."
        + _left_out(layout),
        figure=figure,
    )


def _ratio_panel(axis: Axes, layout: Layout, facet: Facet, loads: Sequence[str], name: str) -> bool:
    drawn = False
    for place, load in enumerate(loads):
        known = [
            (layout.places[layout.value(row)], interval)
            for row in layout.rows(facet, load)
            if (interval := row.ratios.get(name))
        ]
        drawn = drawn or bool(known)
        at = np.array([spot for spot, _ in known]) + 0.14 * (place - (len(loads) - 1) / 2)
        middle = np.array([interval.value for _, interval in known])
        low, high = ([getattr(interval, end) for _, interval in known] for end in ("low", "high"))
        axis.errorbar(
            at,
            middle,
            yerr=np.maximum(0, [middle - low, high - middle]),
            color=_LOADS[place],
            fmt=_marker(place),
            markersize=4,
            capsize=2,
        )
    return drawn


def _throughput(layout: Layout) -> Plot | None:
    """Draw latency against throughput, a curve for each configuration."""
    findings = layout.findings
    loads = [load for load in findings.sweep.loads if parse_load(load).kind != "single"]
    facets = [facet for facet in layout.facets if any(layout.rows(facet, load) for load in loads)]
    if not facets:
        return None
    figure, grid = panels(len(facets), 2)
    for axes, facet in zip(grid, facets, strict=True):
        for axis, name in zip(axes, ("p50", "p99"), strict=True):
            axis.set_title(", ".join(filter(None, [facet.title, name])))
            if not _throughput_panel(axis, layout, facet, loads, name):
                empty(axis, TOO_FEW)
                continue
            axis.set_ylabel("latency, ms")
            plain_log(axis.yaxis)
            axis.set_xlim(left=0)
    for axis in grid[-1]:
        axis.set_xlabel("answered requests/s")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    return Plot(
        name="throughput",
        title="Latency against throughput",
        caption="Open loop: requests arrive at Poisson times, whatever the answers do. A vertical line is "
        "the configuration's capacity, measured with several requests in flight.",
        figure=figure,
    )


def _throughput_panel(axis: Axes, layout: Layout, facet: Facet, loads: Sequence[str], name: str) -> bool:
    drawn = False
    for value in layout.values:
        known = sorted(
            (rate, interval.value)
            for load in loads
            for row in layout.rows(facet, load)
            if layout.value(row) == value
            and (interval := row.quantiles[name])
            and (rate := row.mean("achieved"))
        )
        drawn = drawn or bool(known)
        colour = layout.colour(value)
        axis.plot(
            [rate for rate, _ in known],
            [latency for _, latency in known],
            color=colour,
            marker="o",
            markersize=3.5,
            linewidth=1.2,
            label=layout.name(value),
        )
        labels = {**facet.labels, **dict(zip(layout.compared, value, strict=True))}
        key = tuple(labels[dimension] for dimension in DIMENSIONS)
        if capacity := layout.findings.capacities.get(key):
            axis.axvline(capacity.value, color=colour, linewidth=0.8, linestyle=(0, (2, 3)))
    return drawn


def _split(layout: Layout) -> Plot | None:
    """Draw where the time goes."""
    loads = _two(layout)
    facets = [facet for facet in layout.facets if any(layout.rows(facet, load) for load in loads)]
    known = [row for facet in facets for load in loads for row in layout.rows(facet, load)]
    if not any(len(row.parts) > 1 for row in known):
        return None
    figure, grid = panels(len(facets), len(loads), height=0.7 + 0.27 * len(layout.values))
    for axes, facet in zip(grid, facets, strict=True):
        for axis, load in zip(axes, loads, strict=True):
            _split_panel(axis, layout, layout.rows(facet, load))
            axis.set_title(", ".join(filter(None, [facet.title, load_title(load)])))
    for axis in grid[-1]:
        axis.set_xlabel("mean latency, ms")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(_PARTS))
    return Plot(
        name="split",
        title="Where the time goes",
        caption="Mean latency, by the server's own timings. What those do not account for is both ends' "
        "transport, and how long an answer waited for the generator or the server's event loop; it is the "
        "rest, so that all parts add up. Were it negative, the bar would reach below zero. "
        "Send lag is how late the generator was.",
        figure=figure,
    )


def _split_panel(axis: Axes, layout: Layout, rows: Sequence[Row]) -> None:
    places = {value: place for place, value in enumerate(layout.values)}
    left = dict.fromkeys(places, 0.0)
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
    axis.set_yticks(range(len(places)), [layout.tick(value) for value in places])
    axis.set_ylim(len(places) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.set_ylabel(layout.axis)


def _bytes(layout: Layout) -> Plot | None:
    """Draw latency against the size of the reply."""
    load = layout.findings.sweep.loads[0]
    known = [
        (size, interval, row)
        for row in layout.findings.rows
        if row.load == load and (size := row.mean("reply_bytes")) and (interval := row.quantiles["p50"])
    ]
    sizes = [size for size, _, _ in known]
    if not sizes or max(sizes) < 1.05 * min(sizes):
        return None
    facets = [facet for facet in layout.facets if layout.rows(facet, load)]
    figure, (axis,) = wrapped(1, height=4.2)
    figure.set_size_inches(8.5, 4.6)
    for value in layout.values:
        for place, facet in enumerate(facets):
            points = [
                (size, interval) for size, interval, row in known
                if layout.value(row) == value and facet.holds(row)
            ]  # fmt: skip
            middle = np.array([interval.value for _, interval in points])
            low, high = ([getattr(interval, end) for _, interval in points] for end in ("low", "high"))
            axis.errorbar(
                [size / 2**10 for size, _ in points],
                middle,
                yerr=np.maximum(0, [middle - low, high - middle]),
                color=layout.colour(value),
                fmt=_marker(place),
                markersize=6,
                capsize=3,
            )
    plain_log(axis.xaxis)
    plain_log(axis.yaxis)
    axis.set_xlabel("reply, KiB")
    axis.set_ylabel("p50 latency, ms")
    axis.set_title(load_title(load))
    entries = [(layout.name(value), "o", layout.colour(value)) for value in layout.values]
    if len(facets) > 1:
        entries += [(facet.title, _marker(place), "#777777") for place, facet in enumerate(facets)]
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=colour, label=label)
        for label, marker, colour in entries
    ]
    figure.legend(handles=handles, loc="outside right upper")
    return Plot(
        name="bytes",
        title="Latency against the size of the reply",
        caption="Bars are 95 % intervals.",
        figure=figure,
    )


def _marker(place: int) -> str:
    return _MARKERS[place % len(_MARKERS)]


def _ecdf(layout: Layout) -> Plot | None:
    """Draw how latencies are distributed."""
    loads = _two(layout)
    facets = [facet for facet in layout.facets if any(layout.rows(facet, load) for load in loads)]
    figure, grid = panels(len(facets), len(loads))
    for axes, facet in zip(grid, facets, strict=True):
        for axis, load in zip(axes, loads, strict=True):
            axis.set_title(", ".join(filter(None, [facet.title, load_title(load)])))
            rows = layout.rows(facet, load)
            if not rows:
                empty(axis, "no valid run")
                continue
            for row in rows:
                shares = np.linspace(0, 1, len(row.ecdf))
                value = layout.value(row)
                axis.plot(
                    row.ecdf, shares, color=layout.colour(value), linewidth=1.1, label=layout.name(value)
                )
            plain_log(axis.xaxis)
            axis.set_ylim(0, 1.01)
        axes[0].set_ylabel("share of requests")
    for axis in grid[-1]:
        axis.set_xlabel("latency, ms")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    return Plot(
        name="ecdf",
        title="Distribution of latencies",
        caption="The share of requests that were answered within a time; all valid blocks together.",
        figure=figure,
    )


def _two(layout: Layout) -> list[str]:
    """Return the quietest load and the highest."""
    loads = layout.findings.sweep.loads
    shares = [load for load in loads if parse_load(load).kind == "share"]
    highest = max(shares, key=lambda load: parse_load(load).value, default=loads[-1])
    return list(dict.fromkeys([loads[0], highest]))


_ALL: Sequence[Callable[[Layout], Plot | None]] = (_latency, _ratio, _throughput, _split, _bytes, _ecdf)
