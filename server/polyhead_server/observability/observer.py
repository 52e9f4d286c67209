"""What happens to work, for whatever counts it. All reports are made on the event loop."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Drop(StrEnum):
    """Why work ended without a result, other than by a failure of the engine."""

    QUEUE_FULL = "queue_full"
    """Rejected: too many tokens wait."""
    UNREACHABLE = "unreachable"
    """Rejected: its deadline would pass before it could run."""
    STOPPING = "stopping"
    """Rejected: the model is being closed."""
    TIMEOUT = "timeout"
    """It waited longer than its `timeout` or than the server's limit."""
    EXPIRED = "expired"
    """The caller's deadline passed, in the queue or during the run."""
    CANCELLED = "cancelled"
    """The caller left, in the queue or during the run."""
    DRAINING = "draining"
    """Rejected before it was scheduled: the server drains."""
    LOADING = "loading"
    """Rejected likewise: the model is being loaded."""
    MEMORY = "memory"
    """Rejected likewise: too much is held in memory."""


@dataclass(kw_only=True, slots=True)
class Execution:
    """One run of the engine."""

    sequences: int
    """B of the run."""
    requests: int
    tokens: int
    """Tokens without padding."""
    padded_tokens: int
    """What layers computed: with padding, or in packed graphs without. That of attention does not count."""
    input_ns: int
    """The time to join the requests."""
    compute_ns: int
    output_ns: int
    """The time to split the outputs."""


class Observer(Protocol):
    """Count what a scheduler does; `Statistics` does."""

    def on_execution(self, execution: Execution) -> None:
        """Count a run that did not fail."""

    def on_drop(self, reason: Drop) -> None:
        """Count work that ended without a result. Results, failures and drops add up to all submitted."""
