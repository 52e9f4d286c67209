"""Polyhead servers as a user starts them, and what they count."""

import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from polyhead_load.sweep.server import OwnServer, free_port, started_server

_PROBES = 8
"""Connections for each worker that must find one that is ready."""


class Metrics:
    """What a server's `/metrics` says.

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


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server that runs."""

    server: OwnServer
    metrics_url: str

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.server.address

    @property
    def process(self) -> psutil.Process:
        """Its process; workers are children of it."""
        return psutil.Process(self.server.pid)

    def cpu_seconds(self) -> float:
        """Return what the server has used so far, all workers together."""
        return self.server.cpu_seconds() or 0.0

    def metrics(self) -> Metrics:
        """Read its metrics."""
        with urllib.request.urlopen(self.metrics_url, timeout=30) as reply:
            return Metrics(reply.read().decode())


@contextmanager
def polyhead_server(
    models: Path,
    arguments: Sequence[str],
    *,
    workers: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Start a server with metrics, and wait until it is ready; stop it at the end.

    Args:
        models: The model repository.
        arguments: Flags of `polyhead serve`.
        workers: How many answer on its port, for what `arguments` say: each must be ready.
        environment: Variables that the server has beyond this process's own.

    Raises:
        SweepError: It did not become ready.
    """
    port = free_port()
    # Its log is worth seeing where it says that something is wrong.
    flags = ["--metrics-port", str(port), "--log-level", "warning", *arguments]
    with started_server(models, flags, connections=_PROBES * workers, environment=environment) as server:
        yield Served(server=server, metrics_url=f"http://127.0.0.1:{port}/metrics")


def made_with(fingerprint: Mapping[str, Any]) -> str:
    """Return a fingerprint as the first words of a page."""
    named = ("Python", "grpcio", "polyhead")
    return ", ".join(
        [
            f"{fingerprint['began']}, {fingerprint['cores']} cores ({fingerprint['processor']})",
            *(f"{name} {fingerprint[name]}" for name in named),
        ]
    )
