"""Looks at a server from outside, once a second, and says whether its memory grows."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from servers import Served

_BLOCKS = 16


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One look."""

    seconds: float
    rss_mib: float
    fds: int
    threads: int
    in_flight: int
    """As the server counts: accepted and not answered."""
    awaited: int
    """As the client counts."""
    answered: int
    """Calls that have ended, so far."""
    refused: int
    """Those of them that did not end with OK."""


@dataclass(frozen=True, kw_only=True)
class Slope:
    """A line through values over time, and how sure it is."""

    per_hour: float
    low: float
    high: float
    """The 95 % interval."""
    seconds: float
    """How long was looked at."""

    @property
    def grown_for_sure(self) -> float:
        """What the lower end of the interval makes of the time that was looked at."""
        return self.low * self.seconds / 3600


def slope(seconds: Sequence[float], values: Sequence[float]) -> Slope:
    """Fit a line.

    Neighbouring samples are alike, which would make a plain interval far too narrow: the line goes through
    the means of 16 stretches of time.
    """
    times = np.array([part.mean() for part in np.array_split(np.asarray(seconds), _BLOCKS)])
    means = np.array([part.mean() for part in np.array_split(np.asarray(values), _BLOCKS)])
    line = stats.linregress(times, means)
    reach = stats.t.ppf(0.975, _BLOCKS - 2) * line.stderr
    return Slope(
        per_hour=float(3600 * line.slope),
        low=float(3600 * (line.slope - reach)),
        high=float(3600 * (line.slope + reach)),
        seconds=seconds[-1] - seconds[0],
    )


class Watch:
    """Takes samples of a server until it is cancelled.

    Args:
        served: The server.
        client: How the client stands: awaited, answered, refused.
    """

    def __init__(self, served: Served, client: Callable[[], tuple[int, int, int]]) -> None:
        self.samples: list[Sample] = []
        self._served = served
        self._client = client
        self._start = time.perf_counter()

    async def run(self) -> None:
        """Take a sample every second."""
        for number in range(1_000_000):
            await asyncio.sleep(max(0.0, self._start + number - time.perf_counter()))
            self.samples.append(await self.look())

    async def look(self) -> Sample:
        """Take one sample."""
        awaited, answered, refused = self._client()
        metrics = await asyncio.to_thread(self._served.metrics)
        process = self._served.process
        with process.oneshot():
            return Sample(
                seconds=time.perf_counter() - self._start,
                rss_mib=process.memory_info().rss / 2**20,
                fds=process.num_fds(),
                threads=process.num_threads(),
                in_flight=metrics.total("polyhead_requests_in_flight"),
                awaited=awaited,
                answered=answered,
                refused=refused,
            )
