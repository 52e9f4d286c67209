"""Find how many machines carry a rate within a limit on p99."""

import math
from dataclasses import dataclass

from polyhead_load.errors import SweepError
from polyhead_load.fleet.model import ALONE, MachineModel, Prediction

MOST_SHARE = 0.85
"""The largest share of its capacity that a machine is given unless told otherwise."""
_STEPS = 6
"""Halvings of the range in which the largest rate is sought: to about a hundredth of the capacity."""


class TooSlowError(SweepError):
    """A limit on p99 is not even kept where requests do not meet each other."""

    def __init__(self, limit: float, alone: Prediction) -> None:
        self.alone = alone
        super().__init__(
            f"no fleet can meet a p99 of {1e3 * limit:.4g} ms: on a machine that has nothing else to do, "
            f"requests have a p99 of {1e3 * alone.p99.value:.3g} ms and a p50 of {1e3 * alone.p50:.3g} ms; "
            "allow more, or take shorter sequences, a smaller encoder, or a faster machine"
        )


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Machines that carry a rate within a limit on p99."""

    rate: float
    """Requests a second of all."""
    p99: float
    """The limit, in seconds."""
    machines: int
    """With the spare ones."""
    spare: int
    """How many may fail while the limit still holds."""
    most: Prediction
    """The largest rate of a machine that keeps the limit, and the largest share of its capacity."""
    limited_by: str
    """What keeps a machine from more: p99, or the largest share."""
    usual: Prediction
    """A machine while none has failed."""
    worst: Prediction
    """A machine while the spare ones have failed."""


def largest_rate(model: MachineModel, p99: float, most_share: float) -> tuple[Prediction, str]:
    """Return the largest rate of a machine at which p99, in seconds, is kept, and what limits it.

    Args:
        model: The machine.
        p99: The limit, in seconds.
        most_share: The largest share of its capacity, from 0 to 1.

    Raises:
        TooSlowError: p99 is not even kept where requests do not meet each other.
    """
    high = model.predict(most_share * model.capacity)
    if high.p99.value <= p99:
        return high, f"--utilisation {100 * most_share:g}%"
    best = model.predict(min(ALONE, most_share) * model.capacity)
    if best.p99.value > p99:
        raise TooSlowError(p99, best)
    low, top = best.rate, high.rate
    for _ in range(_STEPS):
        middle = model.predict((low + top) / 2)
        if middle.p99.value <= p99:
            low, best = middle.rate, middle
        else:
            top = middle.rate
    return best, "p99"


def size_fleet(model: MachineModel, *, rate: float, p99: float, most_share: float, spare: int = 0) -> Fleet:
    """Return the smallest fleet for a rate, with so many machines more as may fail.

    Args:
        model: A machine.
        rate: Requests a second of all.
        p99: The limit, in seconds.
        most_share: The largest share of a machine's capacity, from 0 to 1.
        spare: Machines that may fail.

    Raises:
        TooSlowError: No fleet can keep the limit.
    """
    most, limited_by = largest_rate(model, p99, most_share)
    needed = max(1, math.ceil(rate / most.rate))
    usual = model.predict(rate / (needed + spare))
    return Fleet(
        rate=rate,
        p99=p99,
        machines=needed + spare,
        spare=spare,
        most=most,
        limited_by=limited_by,
        usual=usual,
        worst=model.predict(rate / needed) if spare else usual,
    )
