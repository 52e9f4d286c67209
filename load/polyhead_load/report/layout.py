"""Choose what the pictures of a report show side by side, in which order."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from polyhead_load.report.findings import Aggregate, Row, SweepFindings
from polyhead_load.report.formatting import described
from polyhead_load.sweep.spec import DIMENSIONS, Dimension

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
    """Map findings to panels and axes."""

    def __init__(self, findings: SweepFindings) -> None:
        self.findings = findings
        self.loads = findings.sweep.loads
        labels_of, varied = findings.sweep.labels, findings.sweep.varied
        compared = list(findings.sweep.compared) or ["family"]
        self.compared: list[Dimension] = [name for name in DIMENSIONS if name in compared]
        others = [name for name in DIMENSIONS if name not in self.compared]
        self.facets = []
        for values in product(*map(labels_of, others)):
            labels = dict(zip(others, values, strict=True))
            title = ", ".join(described(name, labels[name]) for name in others if name in varied)
            self.facets.append(Facet(labels, title))
        measured = {self.value(row) for row in findings.rows}
        shown = (value for value in product(*map(labels_of, self.compared)) if value in measured)
        self.places: Mapping[Value, int] = {value: place for place, value in enumerate(shown)}
        """What is compared, in the order of the sweep, and its place on an axis."""

    def value(self, one: Aggregate) -> Value:
        """Return what is compared, of a configuration."""
        return tuple(one.labels[name] for name in self.compared)

    @property
    def axis(self) -> str:
        """Return what is compared, as an axis title."""
        return {"tokens": "T, tokens", "batch": "B, sequences"}.get(self.compared[0], self.compared[0])

    def name(self, value: Value) -> str:
        """Return a value as people read it."""
        return ", ".join(described(name, label) for name, label in zip(self.compared, value, strict=True))

    def rows(self, facet: Facet, load: str) -> list[Row]:
        """Return a panel's valid rows, in order."""
        found = {
            self.value(row): row
            for row in self.findings.rows
            if row.load == load and row.valid and facet.holds(row)
        }
        return [found[value] for value in self.places if value in found]
