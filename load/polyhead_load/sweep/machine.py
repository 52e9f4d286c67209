"""What the machine's processors did while a run was measured, and for whom."""

import os
import time
from dataclasses import dataclass
from typing import Self

import psutil


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Cores that were busy, on average over a run, with its start and its end."""

    foreign: float | None
    """With neither server nor generator nor sweep; None where one cannot know. About 0, not exactly: the
    system counts the whole by ticks and each process by its clock."""
    steal: float | None
    """Taken away by the machine's host."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Processor seconds so far."""

    at: float
    busy: float
    steal: float
    server: float | None
    """The server's part; None where that cannot be known."""
    own: float
    """The part of the sweep itself, and of the generators that have ended."""

    @classmethod
    def now(cls, server: float | None) -> Self:
        """Read all counters.

        Args:
            server: What the server has used so far; None where one cannot know.
        """
        times = psutil.cpu_times()
        # Interrupts are left out: those of the loopback interface are our own traffic.
        busy = times.user + getattr(times, "nice", 0.0) + times.system
        us = os.times()
        return cls(
            at=time.monotonic(),
            busy=busy,
            steal=getattr(times, "steal", 0.0),
            server=server,
            own=us.user + us.system + us.children_user + us.children_system,
        )

    def until(self, later: "Moment") -> Usage:
        """Return what was used between this and a later moment."""
        seconds = later.at - self.at
        if seconds <= 0:
            return Usage(foreign=None, steal=None)
        foreign = None
        if self.server is not None and later.server is not None and later.busy > self.busy:
            ours = later.server - self.server + later.own - self.own
            foreign = (later.busy - self.busy - ours) / seconds
        return Usage(foreign=foreign, steal=(later.steal - self.steal) / seconds)
