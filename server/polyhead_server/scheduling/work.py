"""One request for the engine, and its result.

Both are made once per request, and not frozen, because that takes three times as long.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from polyhead_server.scheduling.costs import Size

PRIORITIES = 5
"""Priorities go from 1, the highest, to this."""
DEFAULT_PRIORITY = 3
"""What 0, and anything above the last priority, stands for, as in Triton."""


@dataclass(kw_only=True, slots=True, eq=False)
class Work:
    """One request for the engine."""

    feeds: Mapping[str, NDArray[Any]]
    """Every input of the graph, (B, …)."""
    outputs: Sequence[str]
    size: Size
    real_tokens: int
    """Without padding."""
    deadline: float | None = None
    """When the caller stops waiting, in the event loop's time."""
    timeout: float | None = None
    """The longest that it may wait to start, in seconds. None is the server's limit."""
    priority: int = 0
    """1 is the highest; 0 is the default."""

    @property
    def level(self) -> int:
        """The priority's index in the queue, from 0."""
        priority = self.priority if 1 <= self.priority <= PRIORITIES else DEFAULT_PRIORITY
        return priority - 1


@dataclass(kw_only=True, slots=True, eq=False)
class Done:
    """The engine's result for one `Work`."""

    outputs: Mapping[str, NDArray[Any]]
    """The requested outputs in the request's own shape; views on the batch's outputs if that was larger."""
    queue_ns: int
    compute_ns: int
    """The whole batch's time."""
    batch: int
    """How many sequences ran together."""
