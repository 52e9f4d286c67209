"""Polyhead servers as a user starts them, and their counters."""

import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc
from prometheus_client.parser import text_string_to_metric_families

from polyhead_load.sweep.server import OwnServer, free_port, started_server
from polyhead_proto import RPCS
from polyhead_proto import messages as pb

_PROBES = 8
"""Connections per worker that must find one that is ready."""


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

    def total(self, name: str) -> int:
        """Sum the samples of one name."""
        return self.by(name)[()]


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


class ServerProcess(OwnServer):
    """A running server with metrics."""

    def __init__(self, server: OwnServer, http_port: int) -> None:
        super().__init__(server.process, server.address)
        self.http_port = http_port

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far, of all workers together."""
        return super().cpu_seconds() or 0.0

    def metrics(self) -> ScrapedMetrics:
        """Read the metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=30) as reply:
            return ScrapedMetrics(reply.read().decode())

    def counters(self) -> ServerCounters:
        """Read metrics and model statistics."""
        rpc = RPCS["ModelStatistics"]
        with grpc.insecure_channel(self.address) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(rpc.path)
            reply = pb.ModelStatisticsResponse.FromString(call(b"", timeout=30))
        statistics = {
            model.name: ModelCounts(
                model.inference_stats.success.count, model.inference_stats.fail.count, model.inference_count
            )
            for model in reply.model_stats
        }
        return ServerCounters(metrics=self.metrics(), statistics=statistics)


@contextmanager
def serve(
    models: Path,
    flags: Sequence[str],
    *,
    workers: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """Start a server with metrics, wait until it is ready, and stop it at the end.

    Args:
        models: The model repository.
        flags: Flags of `polyhead serve`.
        workers: How many workers the flags ask for: each must be ready.
        environment: Variables beyond this process's own.

    Raises:
        SweepError: The server did not become ready.
    """
    port = free_port()
    flags = ["--http-port", str(port), "--log-level", "warning", *flags]
    with started_server(models, flags, connections=_PROBES * workers, environment=environment) as server:
        yield ServerProcess(server, port)
