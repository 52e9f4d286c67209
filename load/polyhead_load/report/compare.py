"""Compare two runs, cell by cell."""

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
from polyhead_load.report.formatting import described, factor
from polyhead_load.report.tables import compact_table, stacked
from polyhead_load.sweep.intervals import Interval, independent_ratio
from polyhead_load.sweep.spec import DIMENSIONS

Key = tuple[str, ...]

_CONDITIONS = ("sweep", "server", "providers", "fingerprint", "families", "hashes", "skipped")
_ALWAYS_DIFFERENT = frozenset(
    {
        "sweep: title",
        "sweep: about",
        "fingerprint: command",
        "fingerprint: began",
        "fingerprint: load before",
    }
)
_LONG = 80


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A cell that both runs have."""

    key: Key
    ratios: Mapping[str, Interval | None]
    """Quantile → the second run to the first; None for too few samples."""
    rate: float | None
    """Rate of the second run to the first's; None in a closed loop."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two runs have in common, and where they differ."""

    pairs: Sequence[Pair]
    only_first: Sequence[Key]
    only_second: Sequence[Key]
    differences: Sequence[str]
    """Differences in machine, versions, families and the sweep itself."""

    def same(self, quantile: str) -> tuple[int, int]:
        """Count the cells whose ratio's interval contains 1, and those that have a ratio."""
        known = self._ratios(quantile)
        return sum(1.0 in ratio for ratio in known), len(known)

    def reach(self, quantile: str) -> float | None:
        """Return by which factor less 1 a ratio's interval reaches to each side, in the median cell."""
        known = self._ratios(quantile)
        return median(math.sqrt(ratio.high / ratio.low) - 1 for ratio in known) if known else None

    def _ratios(self, quantile: str) -> list[Interval]:
        return [ratio for pair in self.pairs if (ratio := pair.ratios[quantile])]

    def sentences(self) -> list[str]:
        """Return a summary, and what to bear in mind when reading it."""
        lines = []
        for name in QUANTILES:
            same, ratios = self.same(name)
            if (reach := self.reach(name)) is not None:
                lines.append(
                    f"{name}: in {same} of {ratios} cells the ratio's interval contains 1 (it reaches "
                    f"±{reach:.1%} in the median)"
                )
        if rates := [pair.rate for pair in self.pairs if pair.rate is not None]:
            lines.append(
                f"the rates of open loops were {min(rates):.3f} to {max(rates):.3f} times the first's"
            )
        return lines + [f"they differ in {difference}" for difference in self.differences]

    def table(self) -> Table:
        """Return a table that fits into 80 columns, without the labels that all cells share."""
        shared = [len(set(labels)) == 1 for labels in zip(*(pair.key for pair in self.pairs), strict=True)]
        table = compact_table("B / A", "cell", "rate", *QUANTILES)
        for pair in self.pairs:
            *labels, load = pair.key
            names = [described(*one) for one in zip(DIMENSIONS, labels, strict=True)] + [load]
            table.add_row(
                "\n".join(name for name, same in zip(names, shared, strict=True) if not same) or labels[0],
                "" if pair.rate is None else f"{pair.rate:.3f}",
                *(
                    stacked(factor(ratio)).replace(" difference", "\ndifference")
                    for ratio in pair.ratios.values()
                ),
            )
        return table


def read_report(path: Path) -> dict[str, Any]:
    """Read a run's report.json, by its own path or its folder's.

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
    """Compare the second run's report with the first's."""
    a, b = _valid_rows(first), _valid_rows(second)
    conditions = ({key: report.get(key) for key in _CONDITIONS} for report in (first, second))
    return Comparison(
        pairs=[_pair(key, a[key], b[key]) for key in a if key in b],
        only_first=[key for key in a if key not in b],
        only_second=[key for key in b if key not in a],
        differences=list(_differences("", *conditions)),
    )


def _valid_rows(report: Mapping[str, Any]) -> dict[Key, Mapping[str, Any]]:
    return {
        tuple(row[name] for name in (*DIMENSIONS, "load")): row
        for row in report["rows"]
        if row["valid_blocks"]
    }


def _pair(key: Key, first: Mapping[str, Any], second: Mapping[str, Any]) -> Pair:
    ratios: dict[str, Interval | None] = dict.fromkeys(QUANTILES)
    for name in QUANTILES:
        facts = [row["ms"][name] for row in (first, second)]
        if all(isinstance(one, dict) for one in facts):
            ratios[name] = independent_ratio(
                *([block[name] for block in row["blocks"]] for row in (second, first))
            )
    before, after = (row.get("offered_per_second") for row in (first, second))
    return Pair(key=key, ratios=ratios, rate=after / before if before and after else None)


def _differences(name: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            if f"{name}{key}" not in _ALWAYS_DIFFERENT:
                yield from _differences(f"{name}{key}: ", one.get(key), other.get(key))
    elif one != other:
        yield f"{name}{_short(one)}, then {_short(other)}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"
