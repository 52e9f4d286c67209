"""How the engine's real times compare with the table's."""

_WEIGHT = 0.1
_SLOWEST = 4.0


class Pace:
    """A running mean of real time over the table's price, to correct estimates with.

    It corrects a table that was measured on a busier machine, or a quieter one.
    """

    def __init__(self) -> None:
        self._ratio = 1.0

    def ran(self, price: float, seconds: float) -> None:
        """Takes one run into account. A single stall counts for little."""
        self._ratio += _WEIGHT * (min(seconds / price, _SLOWEST) - self._ratio)

    def likely(self, seconds: float) -> float:
        """What this estimate comes to, as things went lately."""
        return seconds * self._ratio

    def at_least(self, seconds: float) -> float:
        """The same, never above the estimate itself.

        Work is refused by this one: if a slow spell counted, refusing could go on after it, since what is
        refused never runs to show that it is over.
        """
        return seconds * min(1.0, self._ratio)
