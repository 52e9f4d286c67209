"""What the pictures of a report have in common: what is drawn beside what, colours, axes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from polyhead_load.report.findings import Findings, Row
from polyhead_load.report.words import described
from polyhead_load.sweep.spec import DIMENSIONS, Dimension, parse_load

# Okabe and Ito's colours, which colour-blind people can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A00")

_STYLE: dict[Any, Any] = {
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

_WIDTH = 10.5
_HEIGHT = 3.1


@dataclass(frozen=True)
class Facet:
    """Configurations that differ only in what is compared; each has a panel of its own."""

    labels: Mapping[Dimension, str]
    title: str

    def holds(self, row: Row) -> bool:
        """Return whether the row is one of them."""
        return all(row.labels[name] == value for name, value in self.labels.items())


class Layout:
    """How a run's findings are laid out.

    Args:
        findings: Of the run.
    """

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        sweep = findings.sweep
        compared = list(sweep.compared) or ["family"]
        self.compared: list[Dimension] = [name for name in DIMENSIONS if name in compared]
        others = [name for name in DIMENSIONS if name not in self.compared]
        self.facets = [
            Facet(
                labels=dict(zip(others, labels, strict=True)),
                title=", ".join(
                    described(name, label)
                    for name, label in zip(others, labels, strict=True)
                    if name in findings.varied
                ),
            )
            for labels in product(*(sweep.labels(name) for name in others))
        ]

    @cached_property
    def values(self) -> list[tuple[str, ...]]:
        """What is compared, in order."""
        there = {self.value(row) for row in self.findings.rows}
        labels = product(*(self.findings.sweep.labels(name) for name in self.compared))
        return [value for value in labels if value in there]

    def value(self, row: Row) -> tuple[str, ...]:
        """Return what is compared, of a row."""
        return tuple(row.labels[name] for name in self.compared)

    @cached_property
    def heads(self) -> Mapping[tuple[str, ...], int]:
        """Value → H, where the values are families that differ in it; else empty."""
        if self.compared != ["family"]:
            return {}
        families = self.findings.facts.get("families", {})
        heads = {
            value: families[value[0]]["encoder"]["heads"] for value in self.values if value[0] in families
        }
        return heads if len(set(heads.values())) == len(self.values) else {}

    @cached_property
    def places(self) -> Mapping[tuple[str, ...], float]:
        """Value → where it is along an axis: at the logarithm of H, or one after the other."""
        if not self.heads:
            return {value: float(place) for place, value in enumerate(self.values)}
        # Doubling H is a step of 2, wherever: names fit between 12 and 16, too.
        return {value: 2 * math.log2(self.heads[value]) for value in self.values}

    @property
    def axis(self) -> str:
        """What is compared, in words."""
        if self.heads:
            return "H, attention heads"
        return {"tokens": "T, tokens", "batch": "B, sequences"}.get(self.compared[0], self.compared[0])

    def name(self, value: tuple[str, ...]) -> str:
        """Return a value for a legend."""
        if self.heads:
            return f"H = {self.heads[value]}"
        return ", ".join(described(name, label) for name, label in zip(self.compared, value, strict=True))

    def tick(self, value: tuple[str, ...]) -> str:
        """Return a value for an axis."""
        return str(self.heads[value]) if self.heads else ", ".join(value)

    def colour(self, value: tuple[str, ...]) -> Any:
        """Return the colour of a value: ordered ones shade into each other."""
        place = self.values.index(value)
        if self.heads or len(self.values) > len(_COLOURS):
            return mpl.colormaps["viridis"](0.92 * place / max(1, len(self.values) - 1))
        return _COLOURS[place]

    def rows(self, facet: Facet, load: str) -> list[Row]:
        """Return a panel's valid rows, in order."""
        found = {
            self.value(row): row
            for row in self.findings.rows
            if row.load == load and row.valid and facet.holds(row)
        }
        return [found[value] for value in self.values if value in found]

    @cached_property
    def shown_loads(self) -> list[str]:
        """Few enough to be drawn side by side: single, about half, the highest, and the common rate."""
        loads = self.findings.sweep.loads
        shares = {load: parse_load(load).value for load in loads if parse_load(load).kind == "share"}
        shown = {load for load in loads if parse_load(load).kind in {"single", "common", "rate"}}
        if shares:
            shown |= {max(shares, key=shares.__getitem__), min(shares, key=lambda at: abs(shares[at] - 0.5))}
        return [load for load in loads if load in shown][:4]


@contextmanager
def style() -> Iterator[None]:
    """Draw in the style of the report."""
    with mpl.rc_context(_STYLE):
        yield


def panels(rows: int, columns: int, *, height: float = _HEIGHT) -> tuple[Figure, Sequence[Sequence[Axes]]]:
    """Return a figure as wide as the page, with a grid of axes."""
    width = max(_WIDTH * min(1.0, 0.25 + 0.25 * columns), 5.0)
    figure = Figure(figsize=(width, rows * height + 0.5), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def wrapped(count: int, *, across: int = 3, height: float = _HEIGHT) -> tuple[Figure, list[Axes]]:
    """Return a figure of `count` axes, some in a row."""
    columns = min(count, across)
    figure, grid = panels(math.ceil(count / columns), columns, height=height)
    axes = [axis for row in grid for axis in row]
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def empty(axis: Axes, why: str) -> None:
    """Mark a panel that has nothing to show."""
    axis.text(0.5, 0.5, why, transform=axis.transAxes, ha="center", va="center", color="#888888")
    axis.set_xticks([])
    axis.set_yticks([])


def plain_log(axis: XAxis | YAxis) -> None:
    """Make an axis logarithmic with plain numbers, as many as its length needs. Call it when all is drawn."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    steps = (1, 1.5, 2, 3, 4, 5, 6, 8) if decades < 0.7 else (1, 2, 3, 5) if decades < 1.5 else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=steps if decades < 2.5 else (1,), numticks=100))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_locator(NullLocator())
