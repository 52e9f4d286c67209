"""What a server counts, and samples of its process."""

import asyncio
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.contenders import Contender
from polyhead_client import Client


class ScrapedMetrics:
    """The samples of `/metrics`.

    Args:
        text: In Prometheus' text format.
    """

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def by(self, name: str, *labels: str) -> "Counter[tuple[str, ...]]":
        """Sum the samples of one name by the values of these labels."""
        values: Counter[tuple[str, ...]] = Counter()
        for sample in self._samples:
            if sample.name == name:
                values[tuple(sample.labels[label] for label in labels)] += int(sample.value)
        return values


class ModelCounts(NamedTuple):
    """Counters of one model."""

    succeeded: int
    failed: int
    sequences: int
    """Of the requests that succeeded."""

    def since(self, before: "ModelCounts") -> "ModelCounts":
        """Return the difference to an earlier reading."""
        return ModelCounts(*(new - old for new, old in zip(self, before, strict=True)))


@dataclass(frozen=True, kw_only=True)
class ServerCounters:
    """One reading of everything that a server counts."""

    metrics: ScrapedMetrics
    statistics: Mapping[str, ModelCounts]
    """By model."""


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


class ServerMonitor:
    """Read what a server counts, and take samples of its process.

    Args:
        server: The server.
    """

    def __init__(self, server: Contender) -> None:
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
        metrics = await asyncio.to_thread(self._metrics)
        process = self._server.process
        with process.oneshot():
            return ServerSample(
                seconds=time.perf_counter() - self._start,
                rss_mib=process.memory_info().rss / 2**20,
                fds=process.num_fds(),
                threads=process.num_threads(),
                in_flight=metrics.by("polyhead_requests_in_flight")[()],
            )

    async def counters(self) -> ServerCounters:
        """Read metrics and model statistics."""
        return await asyncio.to_thread(self._counters)

    async def settled(self, seconds: float) -> ServerSample:
        """Return a sample once nothing is in flight, or when that takes longer than so many seconds."""
        for _ in range(round(seconds)):
            await asyncio.sleep(1)
            sample = await self.sample()
            if not sample.in_flight:
                break
        return sample

    def _metrics(self) -> ScrapedMetrics:
        with urllib.request.urlopen(f"http://{self._server.http}/metrics", timeout=30) as reply:
            return ScrapedMetrics(reply.read().decode())

    def _counters(self) -> ServerCounters:
        with Client(self._server.address) as client:
            statistics = {
                model.name: ModelCounts(
                    model.durations["success"].count, model.durations["fail"].count, model.inference_count
                )
                for model in client.statistics()
            }
        return ServerCounters(metrics=self._metrics(), statistics=statistics)
