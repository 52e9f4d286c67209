"""What computes, as the scheduler sees it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


class Runner(Protocol):
    """What computes: an engine, or a test's stand-in."""

    def run(self, feeds: Arrays, outputs: Sequence[str]) -> Arrays:
        """Runs once; called from a worker thread."""

    def stop(self) -> None:
        """Ends the runs in progress, which then fail, and lets no other begin."""
