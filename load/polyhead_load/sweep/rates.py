"""The rates of a run's open loops: fixed when its first block begins, so that all blocks have the same."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from polyhead_load.sweep.cells import Cell, Configuration, comparison, configurations
from polyhead_load.sweep.folder import RunFolder
from polyhead_load.sweep.journal import Measurement
from polyhead_load.sweep.spec import Sweep, parse_load


def capacities_of(measurements: Sequence[Measurement]) -> dict[tuple[str, ...], float]:
    """Return configuration → the median of its capacities, in requests a second."""
    found: dict[tuple[str, ...], list[float]] = {}
    for one in measurements:
        if one.block == 0 and one.settled and one.achieved:
            found.setdefault(one.configuration, []).append(one.achieved)
    return {configuration: median(values) for configuration, values in found.items()}


class Rates:
    """What `sweep.json` says of rates, and adds what is missing there.

    A resumed run keeps the rates that it began with, even where a capacity is measured again.

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
        """Fix the rates of all whose capacity is known by now, and keep those that are fixed."""
        measured = capacities_of(measurements)
        groups: dict[str, list[float]] = {}
        for one in configurations(self._sweep):
            if capacity := self._capacities.get(str(one), measured.get(one.key)):
                self._capacities[str(one)] = capacity
                groups.setdefault(comparison(one, self._sweep), []).append(capacity)
        for group, capacities in groups.items():
            self._common.setdefault(group, self._sweep.common * min(capacities))
        rates = {"capacities": self._capacities, "common": self._common}
        if groups and self._folder.read()[1].get("rates") != rates:
            self._folder.note({"rates": rates})

    def knows(self, configuration: Configuration) -> bool:
        """Return whether it has a capacity."""
        return str(configuration) in self._capacities

    def of(self, cell: Cell) -> float | None:
        """Return the requests a second of an open loop; None where the cell is a closed loop.

        Raises:
            KeyError: The cell needs a capacity that is not there.
        """
        configuration, load = cell.configuration, parse_load(cell.load)
        match load.kind:
            case "share":
                return load.value * self._capacities[str(configuration)]
            case "common":
                if not self.knows(configuration):
                    raise KeyError(str(configuration))
                return self._common[comparison(configuration, self._sweep)]
            case "rate":
                return load.value
            case _:
                return None
