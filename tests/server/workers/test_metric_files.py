"""What workers count: it adds up, and outlives them."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.multiprocess import mark_process_dead
from prometheus_client.parser import text_string_to_metric_families

from polyhead_server.errors import StartError
from polyhead_server.workers.supervisor import add_files, metric_files

WORKER = """
import os, sys
from asyncio import CancelledError
from prometheus_client import values
values.ValueClass = values.MultiProcessValue(lambda: int(sys.argv[1]))
from polyhead_server.observability import metrics
from polyhead_server.observability.statistics import Statistics
"""
COUNT = """
metrics.start(int(sys.argv[1]), int(sys.argv[2]))
own = metrics.Metrics()
statistics = Statistics("tiny", 1, metrics=own)
for _ in range(1000):
    statistics.failed(total_ns=0, error=CancelledError())
own.model_ready.labels("tiny", 1).set(1)
own.ready_workers.set(1)
os.kill(os.getpid(), 9)
"""
FORGET = """
own = metrics.Metrics()
Statistics("tiny", 1, metrics=own).failed(total_ns=0, error=CancelledError())
for version in (1, 2):
    own.model_ready.labels("tiny", version).set(1)
    own.model_info.labels("tiny", version, "CPUExecutionProvider").set(1)
own.forget("tiny", 1)
sys.stdout.buffer.write(metrics.exposition()[0])
"""
READ = """
sys.stdout.buffer.write(metrics.exposition()[0])
print("ready", int(metrics.any_ready()))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with metric_files(2) as folder:
        yield folder


def run(folder: Path, code: str, *arguments: int) -> subprocess.CompletedProcess[str]:
    """A process with the workers' folder."""
    return subprocess.run(
        [sys.executable, "-c", WORKER + code, *map(str, arguments)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )


def count_and_die(folder: Path, worker: int, restarts: int = 0) -> None:
    """A worker counts 1000 requests, is ready, and is killed."""
    assert run(folder, COUNT, worker, restarts).returncode == -signal.SIGKILL


def read(folder: Path) -> dict[str, float]:
    """What another worker reads, without labels."""
    text = run(folder, READ, 1).stdout
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("model") != ""
    }


def test_what_a_killed_worker_has_counted_stays_and_its_replacement_counts_on(folder: Path) -> None:
    files = {*folder.iterdir()}
    count_and_die(folder, 0)
    count_and_die(folder, 1)
    assert read(folder)["polyhead_requests_total"] == 2000

    count_and_die(folder, 0, restarts=3)

    samples = read(folder)
    assert samples["polyhead_requests_total"] == samples["nv_inference_request_failure"] == 3000
    assert samples["polyhead_worker_restarts_total"] == 3
    assert {*folder.iterdir()} == files


def test_how_things_stood_ends_with_the_worker(folder: Path) -> None:
    count_and_die(folder, 0)
    count_and_die(folder, 1)
    names = "polyhead_model_ready", "polyhead_workers", "polyhead_ready_workers", "ready"
    samples = read(folder)
    assert [samples[name] for name in names] == [2, 2, 2, 1]

    mark_process_dead(0, str(folder))

    samples = read(folder)
    assert [samples[name] for name in names] == [1, 1, 1, 1]
    assert samples["polyhead_build_info"] == 1
    assert samples["polyhead_requests_total"] == 2000

    mark_process_dead(1, str(folder))

    samples = read(folder)
    assert samples["ready"] == 0


def test_a_version_that_has_ended_stays_at_0(folder: Path) -> None:
    text = run(folder, FORGET, 0).stdout
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}

    def by_version(name: str) -> dict[str, float]:
        return {sample.labels["version"]: sample.value for sample in families[name]}

    assert by_version("polyhead_model_ready") == by_version("polyhead_model_info") == {"1": 0, "2": 1}
    assert by_version("polyhead_requests") == {"1": 1}


def test_the_folder_is_removed_and_so_is_one_that_a_killed_server_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with metric_files(1) as folder:
        shutil.copytree(folder, tmp_path / "polyhead-metrics-left")
        with metric_files(1) as other:
            assert {*tmp_path.iterdir()} == {folder, other}

    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EROFS])
def test_without_room_the_server_does_not_start(problem: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_bytes(_path: Path, _content: bytes) -> int:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)

    with (
        pytest.raises(StartError, match=f"in the temporary folder, {os.strerror(problem)}: set TMPDIR"),
        metric_files(1),
    ):
        pass


def test_only_missing_files_are_added(folder: Path) -> None:
    (kept, *others) = sorted(folder.glob("*_0.db"))
    kept.write_bytes(b"kept")
    for other in others:
        other.unlink()

    add_files(folder, 0)

    assert kept.read_bytes() == b"kept"
    assert sorted(folder.glob("*_0.db")) == [kept, *others]
