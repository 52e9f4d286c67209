"""Polyhead servers as a user starts them, and what is known of the machine that they run on."""

import os
import platform
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from polyhead_client import Client

_SERVE = "import sys; from polyhead_server.command import app; sys.exit(app(result_action='return_value'))"
"""`polyhead serve`, also where it is not installed beside the interpreter."""

_PROBES = 8
"""Connections for each worker that must find one that is ready."""


class Metrics:
    """What a server's `/metrics` says.

    Args:
        text: In Prometheus' words.
    """

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def by(self, name: str, *labels: str) -> "Counter[tuple[str, ...]]":
        """The samples of one name, added up by these labels' values."""
        values: Counter[tuple[str, ...]] = Counter()
        for sample in self._samples:
            if sample.name == name:
                values[tuple(sample.labels[label] for label in labels)] += int(sample.value)
        return values

    def total(self, name: str) -> int:
        """The samples of one name, added up."""
        return self.by(name)[()]


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server that runs."""

    address: str
    metrics_url: str
    process: psutil.Process

    def metrics(self) -> Metrics:
        """Its metrics."""
        with urllib.request.urlopen(self.metrics_url, timeout=30) as reply:
            return Metrics(reply.read().decode())


class ServerError(Exception):
    """A server did not start; what it printed says why."""


@contextmanager
def polyhead_server(
    models: Path,
    arguments: Sequence[str],
    *,
    workers: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Starts a server and waits until it is ready; stops it at the end.

    Args:
        models: The model repository.
        arguments: Of `polyhead serve`.
        workers: How many answer on its port, for what `arguments` say: each must be ready.
        environment: Variables that the server has beyond this process's own.

    Raises:
        ServerError: It did not become ready.
    """
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        port, metrics_port = (probe.getsockname()[1] for probe in probes)
    command = [sys.executable, "-c", _SERVE, "--models", str(models)]
    # Its log is worth seeing where it says that something is wrong.
    command += ["--port", str(port), "--metrics-port", str(metrics_port), "--log-level", "warning"]
    with subprocess.Popen([*command, *arguments], env=os.environ | (environment or {})) as server:
        try:
            wait_until_ready(f"127.0.0.1:{port}", server, in_a_row=_PROBES * workers, seconds=120)
            yield Served(
                address=f"127.0.0.1:{port}",
                metrics_url=f"http://127.0.0.1:{metrics_port}/metrics",
                process=psutil.Process(server.pid),
            )
        finally:
            server.terminate()


def wait_until_ready(
    address: str, server: "subprocess.Popen[bytes]", *, in_a_row: int, seconds: float
) -> None:
    """Waits until so many connections in a row find a worker that is ready.

    A connection reaches one worker, whichever the system picks: one that is ready says nothing of the others.

    Raises:
        ServerError: The server ended, or took too long.
    """
    end = time.monotonic() + seconds
    ready = 0
    while ready < in_a_row:
        with Client(address, options=[("grpc.use_local_subchannel_pool", 1)]) as client:
            ready = ready + 1 if client.ready(timeout=5) else 0
        if ready:
            continue
        if server.poll() is not None:
            raise ServerError(f"the server ended with status {server.returncode} before it was ready")
        if time.monotonic() > end:
            raise ServerError(f"the server was not ready within {seconds:.0f} s")
        time.sleep(0.1)


def cpu_seconds(process: psutil.Process) -> float:
    """What a process and its children have used so far."""
    return sum(
        sum(each.cpu_times()[:2])
        for each in (process, *process.children(recursive=True))
        if each.is_running()
    )


def fingerprint() -> dict[str, Any]:
    """Where and with what a run was made."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": psutil.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    } | {name: metadata.version(name) for name in ("grpcio", "protobuf", "numpy", "polyhead")}
