"""Two runs of the same cells against each other."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from polyhead_load.errors import SweepError
from polyhead_load.report.findings import QUANTILES
from polyhead_load.report.tables import narrow, stacked
from polyhead_load.report.words import TOO_FEW, described, factor
from polyhead_load.sweep.intervals import Interval, independent_ratio
from polyhead_load.sweep.spec import DIMENSIONS

Key = tuple[str, ...]

_CONDITIONS = ("sweep", "server", "providers", "fingerprint", "families", "hashes", "skipped")
_PASSING = frozenset(
    {
        "sweep: title",
        "sweep: about",
        *(f"fingerprint: {name}" for name in ("command", "began", "load before")),
    }
)
"""What differs between any two runs."""
_LONG = 80


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A cell that both runs have."""

    key: Key
    ratios: Mapping[str, Interval | None]
    """Quantile → the second run against the first."""
    overlap: Mapping[str, bool | None]
    """Quantile → whether the intervals of the two have something in common; None for too few samples."""
    rate: float | None
    """The rate of the second run against the first's; None in a closed loop."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs."""

    pairs: Sequence[Pair]
    only_first: Sequence[Key]
    only_second: Sequence[Key]
    differences: Sequence[str]
    """In what else the two differ than in what they measured."""

    def agreeing(self, quantile: str) -> tuple[int, int]:
        """Count the cells in which the intervals overlap, and those in which both have one."""
        known = [pair.overlap[quantile] for pair in self.pairs if pair.overlap[quantile] is not None]
        return sum(1 for overlap in known if overlap), len(known)

    def same(self, quantile: str) -> tuple[int, int]:
        """Count the cells in which the ratio's interval contains 1, and those in which there is one."""
        known = self._ratios(quantile)
        return sum(1.0 in ratio for ratio in known), len(known)

    def reach(self, quantile: str) -> float | None:
        """Return by which factor less 1 a ratio's interval reaches to each side, in the median cell.

        The wider, the easier it is to agree.
        """
        known = self._ratios(quantile)
        return median(math.sqrt(ratio.high / ratio.low) - 1 for ratio in known) if known else None

    def _ratios(self, quantile: str) -> list[Interval]:
        return [ratio for pair in self.pairs if (ratio := pair.ratios[quantile]) is not None]

    def sentences(self) -> list[str]:
        """Return what it comes to, and what to hold against it."""
        said = []
        for name in QUANTILES:
            (same, ratios), (agreeing, known) = self.same(name), self.agreeing(name)
            if (reach := self.reach(name)) is not None:
                said.append(
                    f"{name}: in {same} of {ratios} cells the ratio's interval contains 1 (it reaches "
                    f"±{reach:.1%} in the median); in {agreeing} of {known} the intervals of the two overlap"
                )
        rates = [pair.rate for pair in self.pairs if pair.rate is not None]
        if rates:
            said.append(
                f"the rates of open loops were {min(rates):.3f} to {max(rates):.3f} times the first's"
            )
        return said + [f"they differ in {difference}" for difference in self.differences]

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "agreeing": {name: self.agreeing(name) for name in QUANTILES},
            "same": {name: self.same(name) for name in QUANTILES},
            "reach": {name: self.reach(name) for name in QUANTILES},
            "differences": list(self.differences),
            "cells": [
                {
                    "cell": list(pair.key),
                    "ratio": {
                        name: TOO_FEW if ratio is None else ratio.facts()
                        for name, ratio in pair.ratios.items()
                    },
                    "overlap": dict(pair.overlap),
                    "rate": pair.rate,
                }
                for pair in self.pairs
            ],
            "only_first": [list(key) for key in self.only_first],
            "only_second": [list(key) for key in self.only_second],
        }


def read_report(path: Path) -> dict[str, Any]:
    """Return a run's report.json, by its own path or its folder's.

    Raises:
        SweepError: There is none.
    """
    file = path / "report.json" if path.is_dir() else path
    try:
        report: dict[str, Any] = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise SweepError(
            f"{path} must be the folder of a sweep with a report.json: "
            f"`polyhead sweep report {path}` writes it"
        ) from error
    except ValueError as error:
        raise SweepError(f"{file} must be the report.json of a sweep, is no JSON") from error
    if not isinstance(report, dict) or "rows" not in report:
        raise SweepError(f"{file} must be the report.json of a sweep, it has no rows")
    return report


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """Compare the second run with the first, cell by cell."""
    ours, theirs = _by_cell(second), _by_cell(first)
    return Comparison(
        pairs=[_pair(key, theirs[key], ours[key]) for key in theirs if key in ours],
        only_first=[key for key in theirs if key not in ours],
        only_second=[key for key in ours if key not in theirs],
        differences=list(_differences(first, second)),
    )


def comparison_table(comparison: Comparison) -> Table:
    """Return a table of at most 80 characters; what all cells have in common is left out."""
    columns = [*DIMENSIONS, "load"]
    varied = [at for at in range(len(columns)) if len({pair.key[at] for pair in comparison.pairs}) > 1]
    table = narrow("B / A", "cell", "rate", "overlap", *QUANTILES)
    for pair in comparison.pairs:
        overlaps = [name for name in QUANTILES if pair.overlap[name] is not None and not pair.overlap[name]]
        table.add_row(
            "\n".join(
                pair.key[at] if at == 4 else described(DIMENSIONS[at], pair.key[at]) for at in varied or [0]
            ),
            "" if pair.rate is None else f"{pair.rate:.3f}",
            "not in\n" + "\n".join(overlaps) if overlaps else "yes",
            *(
                stacked(factor(ratio).replace(" difference", "\ndifference"))
                for ratio in pair.ratios.values()
            ),
        )
    return table


def _by_cell(report: Mapping[str, Any]) -> dict[Key, Mapping[str, Any]]:
    return {
        (*(row[dimension] for dimension in DIMENSIONS), row["load"]): row
        for row in report["rows"]
        if row["valid_blocks"]
    }


def _pair(key: Key, first: Mapping[str, Any], second: Mapping[str, Any]) -> Pair:
    ratios: dict[str, Interval | None] = {}
    overlap: dict[str, bool | None] = {}
    for name in QUANTILES:
        one, other = (_interval(row["ms"][name]) for row in (first, second))
        if one is None or other is None:
            ratios[name] = overlap[name] = None
            continue
        blocks = [[block[name] for block in row["blocks"]] for row in (second, first)]
        ratios[name] = independent_ratio(*blocks)
        overlap[name] = one.overlaps(other)
    rates = [row.get("offered_per_second") for row in (second, first)]
    rate = rates[0] / rates[1] if rates[0] and rates[1] else None
    return Pair(key=key, ratios=ratios, overlap=overlap, rate=rate)


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    """Yield what could be why two runs do not agree, or why they only seem to measure the same."""
    one, other = ({key: report.get(key) for key in _CONDITIONS} for report in (first, second))
    yield from _differing("", one, other)


def _differing(name: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            if f"{name}{key}" not in _PASSING:
                yield from _differing(f"{name}{key}: ", one.get(key), other.get(key))
    elif one != other:
        yield f"{name}{_short(one)}, then {_short(other)}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"


def _interval(value: Any) -> Interval | None:
    return Interval(**value) if isinstance(value, dict) else None
