"""What a scheduler tells whoever counts. Everything is told on the event loop."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Drop(StrEnum):
    """Why work ended without a result of the engine's, other than by its failure."""

    QUEUE_FULL = "queue_full"
    """Refused: too many tokens wait."""
    UNREACHABLE = "unreachable"
    """Refused: its deadline would have passed before its turn."""
    STOPPING = "stopping"
    """Refused: the model is being closed."""
    TIMEOUT = "timeout"
    """It waited longer than its `timeout` or than the server lets work wait."""
    EXPIRED = "expired"
    """The caller's deadline passed, in the queue or during the run."""
    CANCELLED = "cancelled"
    """The caller left, from the queue or during the run."""


@dataclass(kw_only=True, slots=True)
class Execution:
    """One run of the engine."""

    sequences: int
    """B of the run."""
    requests: int
    """How many callers shared it."""
    tokens: int
    """Tokens of the sequences themselves."""
    padded_tokens: int
    """B × T: what was computed, padding included."""
    input_ns: int
    """Putting the requests together."""
    compute_ns: int
    output_ns: int
    """Taking the outputs apart."""


class Observer(Protocol):
    """Counts what a scheduler does."""

    def on_execution(self, execution: Execution) -> None:
        """The engine has run, and did not fail."""

    def on_drop(self, reason: Drop) -> None:
        """Work ended without a result. Together with results and failures, this adds up to all submitted."""


class NoObserver:
    """Counts nothing."""

    def on_execution(self, execution: Execution) -> None:
        """Nothing."""

    def on_drop(self, reason: Drop) -> None:
        """Nothing."""
