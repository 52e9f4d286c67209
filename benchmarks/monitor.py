"""Samples of a server process, taken every second, and whether its memory grows."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.servers import ServerProcess

_BLOCKS = 16


@dataclass(frozen=True, kw_only=True)
class ServerSample:
    """One look at a server."""

    seconds: float
    """Since the monitor was made."""
    rss_mib: float
    fds: int
    threads: int
    in_flight: int
    """Requests that the server has accepted and not answered."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A line through values over time, with its 95 % interval."""

    per_hour: float
    low: float
    high: float
    seconds: float
    """Length of the observation."""

    @property
    def certain_growth(self) -> float:
        """Growth over the observation by the interval's lower end."""
        return self.low * self.seconds / 3600


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend:
    """Fit a line.

    Neighbouring samples are alike, which would make a plain interval far too narrow. So the line goes through
    the means of 16 blocks.
    """
    times = np.array([block.mean() for block in np.array_split(np.asarray(seconds), _BLOCKS)])
    means = np.array([block.mean() for block in np.array_split(np.asarray(values), _BLOCKS)])
    line = stats.linregress(times, means)
    reach = stats.t.ppf(0.975, _BLOCKS - 2) * line.stderr
    return Trend(
        per_hour=float(3600 * line.slope),
        low=float(3600 * (line.slope - reach)),
        high=float(3600 * (line.slope + reach)),
        seconds=seconds[-1] - seconds[0],
    )


class ServerMonitor:
    """Take samples of a server.

    Args:
        server: The server.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.samples: list[ServerSample] = []
        self._server = server
        self._start = time.perf_counter()

    async def run(self) -> None:
        """Take a sample every second, until cancelled."""
        while True:
            self.samples.append(await self.sample())
            await asyncio.sleep(1 - (time.perf_counter() - self._start) % 1)

    async def sample(self) -> ServerSample:
        """Take one sample now."""
        metrics = await asyncio.to_thread(self._server.metrics)
        process = self._server.process
        with process.oneshot():
            return ServerSample(
                seconds=time.perf_counter() - self._start,
                rss_mib=process.memory_info().rss / 2**20,
                fds=process.num_fds(),
                threads=process.num_threads(),
                in_flight=metrics.total("polyhead_requests_in_flight"),
            )
