"""Servers of two workers, as real processes."""

import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

COMMAND = [sys.executable, "-c", "from polyhead_server.command import app; app()"]


class Workers:
    """A server of two workers, its log read as it comes."""

    def __init__(self, *arguments: str) -> None:
        settings = ["--workers", "2", "--device", "cpu", "--metrics-port", "0", "--log-level", "debug"]
        self.process = subprocess.Popen([*COMMAND, *settings, *arguments], stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._more:
                self.lines.append(line)
                self._more.notify_all()

    def until(self, pattern: str, times: int = 1) -> re.Match[str]:
        """Waits until so many lines of the log match; the last match."""

        def matches() -> list[re.Match[str]]:
            return [match for line in self.lines if (match := re.search(pattern, line))]

        with self._more:
            assert self._more.wait_for(lambda: len(matches()) >= times, 90), "".join(self.lines)
        return matches()[times - 1]

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
        with urllib.request.urlopen(url, timeout=30) as reply:
            families = text_string_to_metric_families(reply.read().decode())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def end(self) -> int:
        """Waits for the exit code, and for the end of the log."""
        code = self.process.wait(60)
        self._reader.join(60)
        return code

    def close(self) -> None:
        """Ends what is left."""
        with_children = [*psutil.Process(self.process.pid).children()] if self.process.poll() is None else []
        self.process.kill()
        for child in with_children:
            if child.is_running():
                child.kill()
        self.process.wait()
        self._reader.join(60)
        assert self.process.stderr is not None
        self.process.stderr.close()


Start = Callable[..., Workers]


@pytest.fixture
def start(repository: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[Workers] = []

    def run(*arguments: str, models: Path = repository, port: int = 0) -> Workers:
        settings = ["--port", str(port), "--threads", "1", "--cache-dir", str(tmp_path / "cache")]
        started.append(Workers("--models", str(models), *settings, *arguments))
        return started[-1]

    yield run
    for one in started:
        one.close()
