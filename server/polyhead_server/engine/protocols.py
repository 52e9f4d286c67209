"""What an engine needs of the library that computes: runs of a graph."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray


class EngineRun(Protocol):
    """One run of a session."""

    def __call__(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str], *, shrink: bool
    ) -> list[NDArray[Any]]:
        """Compute, and return arrays that no later run changes. The GIL is free meanwhile.

        Args:
            feeds: Every input by name.
            outputs: The outputs to return.
            shrink: Whether to return memory of earlier runs to the system afterwards.
        """

    def cancel(self) -> None:
        """End the run at its next operator, or as soon as it begins: it raises. Any thread may call this."""


EngineSession: TypeAlias = Callable[[], EngineRun]
"""A graph that is loaded: returns a run that has not begun. Runs may go side by side."""
