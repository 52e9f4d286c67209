"""The rates of a run's open loops: fixed when its first block begins, so that all blocks have the same."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from polyhead_load.sweep.cells import Cell, Configuration, comparison, configurations, rate_of
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.journal import Measurement
from polyhead_load.sweep.spec import Sweep, parse_load


def capacities_of(measurements: Sequence[Measurement]) -> dict[tuple[str, ...], float]:
    """Configuration → the median of its capacities, in requests a second."""
    found: dict[tuple[str, ...], list[float]] = {}
    for one in measurements:
        if one.block == 0 and one.settled and one.achieved:
            found.setdefault(one.configuration, []).append(one.achieved)
    return {configuration: median(values) for configuration, values in found.items()}


class Rates:
    """What `sweep.json` says of rates, and adds what is missing there.

    A run that is gone on with calls at the rates of its beginning, even where a capacity was measured anew.

    Args:
        sweep: Whose.
        folder: The run's.
    """

    def __init__(self, sweep: Sweep, folder: RunFolder) -> None:
        self._sweep = sweep
        self._folder = folder
        held: Mapping[str, Any] = folder.read()[1].get("rates", {})
        self._capacities: dict[str, float] = dict(held.get("capacities", {}))
        self._common: dict[str, float] = dict(held.get("common", {}))

    def fix(self, measurements: Sequence[Measurement]) -> None:
        """Fixes the rates of all whose capacity is known by now, and keeps those that are fixed."""
        measured = capacities_of(measurements)
        there = configurations(self._sweep)
        for one in there:
            if capacity := measured.get(one.key):
                self._capacities.setdefault(str(one), capacity)
        known = {one: self._capacities[str(one)] for one in there if str(one) in self._capacities}
        for one in known:
            group = comparison(one, self._sweep)
            if group not in self._common:
                self._common[group] = rate_of(Cell(configuration=one, load="common"), self._sweep, known) or 0
        rates = {"capacities": self._capacities, "common": self._common}
        if known and self._folder.read()[1].get("rates") != rates:
            self._folder.note({"rates": rates})

    def knows(self, configuration: Configuration) -> bool:
        """Whether it has a capacity."""
        return str(configuration) in self._capacities

    def of(self, cell: Cell) -> float | None:
        """Requests a second in an open loop; None where the cell is a closed loop.

        Raises:
            KeyError: The cell needs a capacity that is not there.
        """
        own = {cell.configuration: self._capacities[str(cell.configuration)]} if self._needs(cell) else {}
        if parse_load(cell.load).kind == "common":
            return self._common[comparison(cell.configuration, self._sweep)]
        return rate_of(cell, self._sweep, own)

    @staticmethod
    def _needs(cell: Cell) -> bool:
        return parse_load(cell.load).kind in {"share", "common"}
