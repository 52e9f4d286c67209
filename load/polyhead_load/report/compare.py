"""Two runs of the same cells against each other."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from polyhead_load.report.findings import QUANTILES
from polyhead_load.report.words import TOO_FEW, factor
from polyhead_load.sweep.errors import SweepError
from polyhead_load.sweep.intervals import Interval, independent_ratio
from polyhead_load.sweep.spec import DIMENSIONS

Key = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A cell that both runs have."""

    key: Key
    ratios: Mapping[str, Interval | None]
    """Quantile → the second run against the first."""
    overlap: Mapping[str, bool | None]
    """Quantile → whether the intervals of the two have something in common; None for too few samples."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs."""

    pairs: Sequence[Pair]
    only_first: Sequence[Key]
    only_second: Sequence[Key]

    def agreeing(self, quantile: str) -> tuple[int, int]:
        """In how many cells the intervals overlap, and in how many both have one."""
        known = [pair.overlap[quantile] for pair in self.pairs if pair.overlap[quantile] is not None]
        return sum(1 for overlap in known if overlap), len(known)

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "agreeing": {name: self.agreeing(name) for name in QUANTILES},
            "cells": [
                {
                    "cell": list(pair.key),
                    "ratio": {
                        name: TOO_FEW if ratio is None else ratio.facts()
                        for name, ratio in pair.ratios.items()
                    },
                    "overlap": dict(pair.overlap),
                }
                for pair in self.pairs
            ],
            "only_first": [list(key) for key in self.only_first],
            "only_second": [list(key) for key in self.only_second],
        }


def read_report(path: Path) -> dict[str, Any]:
    """A run's report.json, by its own path or its folder's.

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
    """Cell by cell, the second run against the first."""
    ours, theirs = _by_cell(second), _by_cell(first)
    return Comparison(
        pairs=[_pair(key, theirs[key], ours[key]) for key in theirs if key in ours],
        only_first=[key for key in theirs if key not in ours],
        only_second=[key for key in ours if key not in theirs],
    )


def comparison_table(comparison: Comparison) -> Table:
    """For the terminal."""
    table = Table(*DIMENSIONS, "load", *(f"{name}, B / A" for name in QUANTILES), "overlap")
    for pair in comparison.pairs:
        overlaps = [name for name in QUANTILES if pair.overlap[name] is not None and not pair.overlap[name]]
        table.add_row(
            *pair.key,
            *(factor(ratio) for ratio in pair.ratios.values()),
            f"not in {', '.join(overlaps)}" if overlaps else "yes",
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
    return Pair(key=key, ratios=ratios, overlap=overlap)


def _interval(value: Any) -> Interval | None:
    return Interval(**value) if isinstance(value, dict) else None
