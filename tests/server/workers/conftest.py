"""Servers of two workers, as real processes."""

import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.servers import ServerProcess


class Workers(ServerProcess):
    """A server of two workers, its log read as it comes."""

    def __init__(self, *arguments: str) -> None:
        settings = ["--workers", "2", "--device", "cpu", "--http-port", "0", "--log-level", "debug"]
        super().__init__(*settings, *arguments)

    @property
    def address(self) -> str:
        return self.until(r"2 workers serve on (\S+)")[1]

    def pids(self, worker: int) -> list[int]:
        """Every process that has been this worker."""
        found = [re.search(rf"worker {worker} is process (\d+)", line) for line in self.lines]
        return [int(match[1]) for match in found if match]

    def metric(self, name: str, **labels: str) -> float:
        """A sample of the metrics."""
        url = self.until(r"metrics on (\S+)")[1]
        with urllib.request.urlopen(url, timeout=120) as reply:
            families = text_string_to_metric_families(reply.read().decode())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def close(self) -> None:
        """Ends what is left, its workers too."""
        children = psutil.Process(self.process.pid).children() if self.process.poll() is None else []
        self.process.kill()
        for child in children:
            if child.is_running():
                child.kill()
        super().close()


Start = Callable[..., Workers]


@pytest.fixture
def start(repository: Path) -> Iterator[Start]:
    started: list[Workers] = []

    def run(*arguments: str, models: Path = repository, port: int = 0) -> Workers:
        settings = ["--port", str(port), "--threads", "1"]
        started.append(Workers("--models", str(models), *settings, *arguments))
        return started[-1]

    yield run
    for one in started:
        one.close()
