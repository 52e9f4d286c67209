"""Whether anything but a benchmark kept the machine busy."""

from collections.abc import Callable
from dataclasses import dataclass

import psutil

from polyhead_load.sweep.measuring import CpuTimes
from polyhead_load.sweep.server import cpu_seconds

_MOST = 0.15
"""Cores that other processes may keep busy, and that the machine's host may take, in a valid measurement."""


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What took processors away from a measurement, in cores."""

    foreign: float
    """Kept busy by other processes."""
    stolen: float
    """Taken by the machine's host."""

    @property
    def valid(self) -> bool:
        """Whether the measurement counts."""
        return self.foreign <= _MOST and self.stolen <= _MOST

    def __str__(self) -> str:
        return f"other processes kept {self.foreign:.2f} cores busy, and the host took {self.stolen:.2f}"


def watch() -> Callable[[], Disturbance]:
    """Return what tells how the time from now on was disturbed."""
    before = _read()

    def told() -> Disturbance:
        after = _read()
        foreign = max(before.foreign_cores(after) or 0.0, 0.0)
        return Disturbance(foreign=foreign, stolen=before.stolen_cores(after))

    return told


def _read() -> CpuTimes:
    """Read the machine's counters, and those of this process and of all below it."""
    return CpuTimes.now(sum(map(cpu_seconds, psutil.Process().children())))
