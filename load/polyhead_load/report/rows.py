"""What a cell comes to, and what a configuration can do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from polyhead_load.sweep.intervals import Interval, Values
from polyhead_load.sweep.journal import Measurement
from polyhead_load.sweep.spec import Dimension

QUANTILES: Mapping[str, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a configuration can answer, in requests a second."""

    value: float
    """The median of its runs."""
    low: float
    high: float
    runs: Sequence[Measurement]

    @classmethod
    def of(cls, runs: Sequence[Measurement]) -> "Capacity | None":
        """Of the runs that count; None where none does."""
        counted = [one for one in runs if not one.void and one.achieved]
        values = [one.achieved for one in counted if one.achieved]
        if not values:
            return None
        return cls(value=median(values), low=min(values), high=max(values), runs=counted)

    def facts(self) -> dict[str, float | int]:
        """For JSON."""
        return {
            "requests_per_second": self.value,
            "low": self.low,
            "high": self.high,
            "runs": len(self.runs),
        }


@dataclass(frozen=True, kw_only=True)
class Row:
    """A cell. Latencies are in milliseconds, from the planned time to the answer."""

    labels: Mapping[Dimension, str]
    load: str
    valid: Sequence[Measurement]
    void: Sequence[Measurement]
    quantiles: Mapping[str, Interval | None]
    """By name; None is too few samples."""
    ratios: Mapping[str, Interval | None] = field(default_factory=dict)
    """To the baseline, of the same blocks; empty where there is nothing to compare with."""
    uncompared: str = ""
    """Why there are no ratios, where there should be."""
    blocks: Mapping[int, Values] = field(default_factory=dict)
    """Block → latencies."""
    send_lag_p99_ms: float | None = None
    """Of all requests of an open loop that were sent."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Of the mean latency; they add up to `total`."""
    ecdf: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """Latencies at equal steps of the share, from 0 to 1."""

    @property
    def key(self) -> tuple[str, ...]:
        """Names the cell."""
        return *self.labels.values(), self.load

    @property
    def requests(self) -> int:
        """Answered, in all valid runs."""
        return sum(one.requests for one in self.valid)

    def mean(self, name: str) -> float | None:
        """Of a field of the valid runs; None where none has it."""
        values = [value for one in self.valid if (value := getattr(one, name)) is not None]
        return float(np.mean(values)) if values else None

    @property
    def reasons(self) -> Sequence[str]:
        """Why runs are void, each reason once."""
        return list(dict.fromkeys(reason for one in self.void for reason in one.void))

    @property
    def overloaded(self) -> Sequence[Measurement]:
        """The valid runs in which the server did not keep up: they count."""
        return [one for one in self.valid if one.overloaded]
