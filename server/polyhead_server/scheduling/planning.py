"""What decides which requests run together: one rule for graphs that pad, one for packed graphs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from polyhead_server.scheduling.costs import CostModel, Size

WINDOW = 64
"""How many requests a batch is chosen from. Planning takes longer with more."""


class Planner(ABC):
    """Cut what waits into batches.

    Args:
        max_tokens: The most tokens N of a batch of several requests.
        most_rows: Returns the largest B of such a batch by memory, given T, and how many run at once; never
            more at a larger T.
    """

    def __init__(
        self,
        *,
        max_tokens: int = 2**63,
        most_rows: Callable[[int, int], int] = lambda _longest, _at_once: 2**31,
    ) -> None:
        self._max_tokens = max_tokens
        self._most_rows = most_rows

    def fits(self, size: Size, at_once: int) -> bool:
        """Return whether so many batches of this size may run at once; a single sequence always may."""
        return size.rows == 1 or (
            size.tokens <= self._max_tokens and size.rows <= self._most_rows(size.longest, at_once)
        )

    @abstractmethod
    def joint(self, sizes: Sequence[Size]) -> Size:
        """Return the size of a run of several requests."""

    @abstractmethod
    def cut(
        self, requests: Sequence[Size], costs: CostModel, *, at_once: int = 1, lanes: int = 1
    ) -> Iterator[list[int]]:
        """Cut requests into batches.

        Args:
            requests: The most urgent first; at least one.
            costs: The prices.
            at_once: How many batches may run at once and share the memory. A request that is too large for
                that runs alone.
            lanes: How many batches share the work. There are at least as many, if there are requests enough,
                and none is larger than all work divided by the lanes, but for one request.

        Yields:
            The requests' positions, in batches, the batch with the most urgent request first.
        """
