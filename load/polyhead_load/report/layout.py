"""Choose what the pictures of a report show side by side, in which order and colours."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import matplotlib as mpl

from polyhead_load.report.findings import Aggregate, Findings, Row
from polyhead_load.report.formatting import described
from polyhead_load.sweep.spec import DIMENSIONS, Dimension

# Okabe and Ito's colours, which colour-blind people can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A00")

_OF_HEADS = {"heads", "head_width", "d_model"}
"""Fields of an encoder in which families of a comparison of heads differ."""

Value = tuple[str, ...]
"""The labels in which compared configurations differ."""


@dataclass(frozen=True)
class Facet:
    """Configurations that differ only in what is compared: one row of panels."""

    labels: Mapping[Dimension, str]
    title: str

    def holds(self, one: Aggregate) -> bool:
        """Return whether a configuration belongs to the facet."""
        return all(one.labels[name] == value for name, value in self.labels.items())


class PlotLayout:
    """Map findings to panels, axes and colours."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.loads = findings.sweep.loads
        labels_of = findings.sweep.labels
        compared = list(findings.sweep.compared) or ["family"]
        self.compared: list[Dimension] = [name for name in DIMENSIONS if name in compared]
        others = [name for name in DIMENSIONS if name not in self.compared]
        self.facets = []
        for values in product(*map(labels_of, others)):
            labels = dict(zip(others, values, strict=True))
            title = ", ".join(described(name, labels[name]) for name in others if name in findings.varied)
            self.facets.append(Facet(labels, title))
        measured = {self.value(row) for row in findings.rows}
        self.values = [value for value in product(*map(labels_of, self.compared)) if value in measured]
        """What is compared, in the order of the sweep."""

    def value(self, one: Aggregate) -> Value:
        """Return what is compared, of a configuration."""
        return tuple(one.labels[name] for name in self.compared)

    @cached_property
    def heads(self) -> Mapping[Value, int]:
        """Map each value to H where families differ in H, and in widths, alone; empty otherwise."""
        if self.compared != ["family"]:
            return {}
        families = self.findings.facts.get("families", {})
        encoders = {value: families[value[0]]["encoder"] for value in self.values if value[0] in families}
        rest = [{**encoder, **dict.fromkeys(_OF_HEADS)} for encoder in encoders.values()]
        heads = {value: encoder["heads"] for value, encoder in encoders.items()}
        alike = all(one == rest[0] for one in rest)
        return heads if alike and len(set(heads.values())) == len(self.values) else {}

    @cached_property
    def places(self) -> Mapping[Value, float]:
        """Map each value to its place on an axis: at the logarithm of H, or one after the other."""
        if not self.heads:
            return {value: float(place) for place, value in enumerate(self.values)}
        # A step of 2 for each doubling leaves room for labels between 12 and 16.
        return {value: 2 * math.log2(self.heads[value]) for value in self.values}

    @property
    def axis(self) -> str:
        """Return what is compared, as an axis title."""
        if self.heads:
            return "H, attention heads"
        return {"tokens": "T, tokens", "batch": "B, sequences"}.get(self.compared[0], self.compared[0])

    def name(self, value: Value) -> str:
        """Return a value for a legend."""
        if self.heads:
            return f"H = {self.heads[value]}"
        return ", ".join(described(name, label) for name, label in zip(self.compared, value, strict=True))

    def tick(self, value: Value) -> str:
        """Return a value for an axis."""
        return str(self.heads[value]) if self.heads else ", ".join(value)

    def colour(self, value: Value) -> Any:
        """Return a value's colour; numbers of heads get a gradient."""
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
