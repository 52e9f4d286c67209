"""Placeholder: the learned cost model comes from its own branch."""

from collections.abc import Callable, Mapping

Size = tuple[int, int]
"""A request's (B, T)."""


class CostModel:
    """Predict the seconds of a run."""

    def __init__(self, prior: Mapping[Size, float]) -> None:
        (batch, tokens), seconds = next(iter(prior.items()))
        self._seconds = seconds / (batch * tokens)

    def price(self, batch: int, tokens: int) -> float:
        """Return the seconds of one run of (B, T)."""
        return self._seconds * batch * tokens

    def marginal(self, batch: int, tokens: int) -> float:
        """Return the seconds beyond the fixed cost of a run."""
        return self._seconds * batch * tokens

    def observe(self, batch: int, tokens: int, seconds: float) -> None:
        """Learn from a run."""


def measure_prior(
    run: Callable[[int, int], object], *, max_tokens: int | None, fits: Callable[[int, int], bool]
) -> dict[Size, float]:
    """Time a few runs."""
    run(1, min(8, max_tokens or 8))
    return {(1, 8): 1e-3}
