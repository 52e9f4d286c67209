"""Contenders take turns on one device, so that a clock that drops is slow for all of them."""

from collections.abc import Callable, Mapping
from statistics import median

from gpu.card import Card

_MOST_RUNS = 200


def compare(
    card: Card, contenders: Mapping[str, Callable[[], object]], *, sample_ms: float, rounds: int
) -> dict[str, list[float]]:
    """Times calls against each other.

    Args:
        card: Where they run.
        contenders: What is timed, by name.
        sample_ms: How long each is repeated for one sample.
        rounds: Samples of each.

    Returns:
        Milliseconds of one call, a sample for each round.
    """
    runs = {}
    for name, call in contenders.items():
        card.milliseconds(call, 2)  # shapes are planned, memory is taken, clocks rise
        runs[name] = max(1, min(_MOST_RUNS, int(sample_ms / max(1e-3, card.milliseconds(call, 1)))))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            samples[name].append(card.milliseconds(call, runs[name]))
    return samples


def ratio(samples: Mapping[str, list[float]], slower: str, faster: str) -> float | None:
    """How many times as fast as `slower` `faster` is, in the median round; None where one is missing."""
    if not samples.get(slower) or not samples.get(faster):
        return None
    return median(one / other for one, other in zip(samples[slower], samples[faster], strict=True))
