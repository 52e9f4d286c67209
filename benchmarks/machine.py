"""Whether anything but a benchmark kept the machine busy."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import psutil

from polyhead_load.sweep.measuring import CpuTimes

_MOST = 0.15
"""Cores that other processes may keep busy, and that the machine's host may take, in a valid measurement."""


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What took processors away from a measurement, in cores."""

    foreign: float
    """Kept busy by other processes."""
    stolen: float
    """Taken by the machine's host."""

    @classmethod
    def between(cls, before: CpuTimes, after: CpuTimes) -> Self:
        """Return what disturbed the time between two readings."""
        foreign = before.foreign_cores(after) or 0.0
        return cls(foreign=max(foreign, 0.0), stolen=before.stolen_cores(after))

    @property
    def valid(self) -> bool:
        """Whether the measurement counts."""
        return self.foreign <= _MOST and self.stolen <= _MOST

    def __str__(self) -> str:
        return f"other processes kept {self.foreign:.2f} cores busy, and the host took {self.stolen:.2f}"


def watch() -> Callable[[], Disturbance]:
    """Return what tells how the time from now on was disturbed."""
    before = _read()
    return lambda: Disturbance.between(before, _read())


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process and of all below it, those that have ended included."""
    seconds = 0.0
    with suppress(psutil.Error):
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                seconds += sum(each.cpu_times()[:4])  # own, and of children that were waited for
    return seconds


def _read() -> CpuTimes:
    """Read the machine's counters, and those of this process and of all below it."""
    return CpuTimes.now(sum(map(cpu_seconds, psutil.Process().children())))
