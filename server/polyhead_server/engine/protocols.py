"""What an engine needs of the library that computes: sessions, and runs of them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray


class Run(Protocol):
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


class Session(Protocol):
    """A graph that is loaded. Its runs may go side by side."""

    @property
    def inputs(self) -> Collection[str]:
        """The names of its inputs."""

    @property
    def outputs(self) -> Collection[str]:
        """The names of its outputs."""

    def prepare(self) -> Run:
        """Return a run that has not begun."""
