"""One request for the engine, and its answer.

They are made once a request, and not frozen, because that takes three times as long.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

PRIORITIES = 5
"""Priorities go from 1, the highest, to this."""
DEFAULT_PRIORITY = 3
"""What 0, and whatever is above the last priority, stands for: as Triton has it."""


@dataclass(kw_only=True, slots=True, eq=False)
class Work:
    """One request for the engine."""

    feeds: Mapping[str, NDArray[Any]]
    """Every input of the graph, (B, …)."""
    outputs: Sequence[str]
    batch: int
    """B, at least 1."""
    tokens: int
    """B × T, padding included: what it costs to hold and, about, to run."""
    deadline: float | None = None
    """When the caller stops waiting, in the event loop's time."""
    timeout: float | None = None
    """The longest that it may wait for its turn, in seconds. None: as long as the server lets it."""
    priority: int = 0
    """1 is the highest; 0 is the default."""

    @property
    def size(self) -> tuple[int, int]:
        """(B, T)."""
        return self.batch, self.tokens // self.batch

    @property
    def level(self) -> int:
        """The priority's place in the queue, from 0."""
        priority = self.priority if 1 <= self.priority <= PRIORITIES else DEFAULT_PRIORITY
        return priority - 1


@dataclass(kw_only=True, slots=True, eq=False)
class Done:
    """The engine's answer to one `Work`."""

    outputs: Mapping[str, NDArray[Any]]
    """What was asked for, in the request's own shape; views on what the batch gave, where it was larger."""
    queue_ns: int
    compute_ns: int
    """The whole batch's."""
    batch: int
    """The sequences that ran together."""
