"""Several worker processes behind one port: real processes, killed under load."""

import asyncio
import json
import os
import re
import shutil
import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import grpc
import numpy as np
import psutil
import pytest
from tests.clock import skip
from tests.server.conftest import Running, procedure
from tests.server.workers.conftest import Start, Workers
from tests.servers import Callers, quick_settings
from tests.waiting import until

from polyhead_client import Client, Unavailable
from polyhead_server import Settings
from polyhead_server.address import reserve_port
from polyhead_server.workers.supervisor import Supervisor, metric_files, settings_of
from polyhead_server.workers.worker import LOADING, READY

X = np.ones((2, 3, 16), np.float32)
# A connection of its own, so that the system can give it to another worker.
ALONE = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))


def infer(channel: grpc.Channel, **options: Any) -> Any:
    request = Running.request("tiny", {"x": X})
    return procedure(channel, "ModelInfer")(request, **({"timeout": 120} | options))


def use_both(workers: Workers) -> int:
    """Calls through new connections until both workers have answered; how many calls that took."""
    calls = 0
    while any(not any(f"[{worker}] request" in line for line in workers.lines) for worker in (0, 1)):
        with grpc.insecure_channel(workers.address, ALONE) as channel:
            infer(channel)
        calls += 1
        assert calls < 5000
    return calls


def counted(workers: Workers) -> int:
    """The answered requests of all workers, as one of them, whichever, tells them."""
    with Client(workers.address) as client:
        (one,) = client.statistics("tiny")
    return one.durations["success"].count


def infer_over_http(workers: Workers) -> None:
    """Calls one of the workers, whichever, with the two sequences of `infer`."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 1, 16], "data": [0.5] * 32}
    root = workers.until(r"metrics on (\S+)/metrics")[1]
    body, headers = json.dumps({"inputs": [tensor]}).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{root}/v2/models/tiny/infer", body, headers)
    with urllib.request.urlopen(request, timeout=120) as reply:
        assert reply.status == 200


def test_counts_of_all_workers_add_up_and_survive_a_kill(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "of another program"))
    workers = start("--http")
    calls = use_both(workers)
    infer_over_http(workers)
    calls += 1

    assert counted(workers) == calls
    assert workers.metric("polyhead_requests_total", model="tiny", protocol="http") == 1
    assert workers.metric("polyhead_requests_total", model="tiny", code="OK") == calls
    assert workers.metric("polyhead_sequences_total", model="tiny") == 2 * calls
    assert workers.metric("nv_inference_count", model="tiny") == 2 * calls
    assert workers.metric("polyhead_workers") == 2
    assert workers.metric("polyhead_model_ready", model="tiny") == 2

    os.kill(workers.pids(0)[0], signal.SIGKILL)
    workers.until("worker 0 has ended .SIGKILL.")
    assert workers.metric("polyhead_requests_total", model="tiny", code="OK") == calls
    workers.until(r"\[0\] serving", times=2)

    assert len(workers.pids(0)) == 2
    assert workers.metric("polyhead_model_ready", model="tiny") == 2
    assert workers.metric("polyhead_worker_restarts_total") == 1
    with grpc.insecure_channel(workers.address, ALONE) as channel:
        infer(channel)
    assert counted(workers) == calls + 1


def test_a_worker_that_is_killed_under_load_is_hidden_by_the_clients_retries(start: Start) -> None:
    workers = start()
    address = workers.address
    use_both(workers)
    before = counted(workers)
    stop = threading.Event()
    outcomes: Counter[str] = Counter()
    lock = threading.Lock()

    def load() -> None:
        while not stop.is_set():
            # A connection for each few calls, so that both workers have some at any time.
            with Client(address, options=(("grpc.use_local_subchannel_pool", 1),)) as client:
                for _ in range(20):
                    try:
                        output = client.encode(X, model="tiny").output
                    except Unavailable:
                        outcome = "unavailable"
                    else:
                        outcome = "right" if output.shape == X.shape else "wrong"
                    with lock:
                        outcomes[outcome] += 1

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: outcomes["right"] >= 100)
    os.kill(workers.pids(0)[0], signal.SIGKILL)
    workers.until(r"\[0\] serving", times=2)
    goal = outcomes["right"] + 100
    until(lambda: outcomes["right"] >= goal)
    stop.set()
    for thread in threads:
        thread.join(240)

    assert set(outcomes) == {"right"}
    # What the killed worker had counted and could not send any more was counted again by another.
    assert 0 <= counted(workers) - before - outcomes["right"] <= len(threads)
    until(lambda: workers.metric("polyhead_requests_in_flight") == 0)


def test_calls_in_flight_in_a_killed_worker_end_with_unavailable(start: Start) -> None:
    workers = start()
    address = workers.address
    use_both(workers)
    with ExitStack() as stack:
        channels = [stack.enter_context(grpc.insecure_channel(address, ALONE)) for _ in range(8)]
        for channel in channels:
            infer(channel)
        for worker in (0, 1):  # who is stopped has their calls in flight for as long as that takes
            os.kill(workers.pids(worker)[0], signal.SIGSTOP)
        methods = [procedure(channel, "ModelInfer") for channel in channels]
        calls = [method.future(b"", timeout=60) for method in methods]
        for worker in (0, 1):
            os.kill(workers.pids(worker)[0], signal.SIGKILL)

        assert [call.code() for call in calls] == [grpc.StatusCode.UNAVAILABLE] * 8

    workers.until(r"\[0\] serving", times=2)
    workers.until(r"\[1\] serving", times=2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_all_workers(start: Start, number: signal.Signals) -> None:
    workers = start()
    address = workers.address
    callers = Callers(address, infer, count=6, options=ALONE)
    callers.wait_for_answers(30)
    workers.process.send_signal(number)
    callers.wait_until_ended()

    assert workers.end() == 0
    assert callers.codes == [grpc.StatusCode.UNAVAILABLE] * 6
    for worker in (0, 1):
        assert any(f"[{worker}] stopped" in line for line in workers.lines)
    assert "Traceback" not in workers.log


def test_workers_do_not_outlive_the_process_above(start: Start) -> None:
    workers = start()
    assert workers.address
    processes = [psutil.Process(workers.pids(worker)[0]) for worker in (0, 1)]
    workers.process.kill()

    gone, alive = psutil.wait_procs(processes, timeout=240)

    assert len(gone) == 2
    assert not alive
    workers.end()
    assert sum("the supervisor has ended" in line for line in workers.lines) == 2


def test_a_worker_that_cannot_start_ends_the_server(start: Start, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    (bad / "tiny" / "1").mkdir(parents=True)
    (bad / "tiny" / "1" / "manifest.json").write_text("{}")
    workers = start(models=bad)

    assert workers.end() == 1
    log = workers.log
    assert "cannot serve: no model could be loaded: tiny 1: manifest.json is not valid" in log
    assert re.search(r"ERROR cannot serve: worker \d could not start \(exit code 1\)", log)


def test_when_no_worker_can_be_replaced_the_server_ends(
    start: Start, repository: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    shutil.copytree(repository / "tiny", models / "tiny")
    workers = start(models=models)
    assert workers.address
    (models / "tiny" / "1" / "manifest.json").write_text("{}")
    for worker in (0, 1):
        os.kill(workers.pids(worker)[0], signal.SIGKILL)

    assert workers.end() == 1
    assert re.search(r"no worker runs any more, and 5 in a row could not start", workers.log)


def test_loading_by_call_needs_a_single_worker(start: Start, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-for-management")
    workers = start("--repository-mode", "explicit", "--management-token-file", str(tmp_path / "token"))

    assert workers.end() == 1
    assert "--repository-mode explicit must have one worker, was 2" in workers.log
    assert "use --repository-mode poll" in workers.log


# ---- Workers that stand still ----------------------------------------------------------------------


REPORT_SECONDS = 1000.0
"""So long that none is missed because the machine stalls."""


async def miss(reports: int) -> None:
    """So many reports are due."""
    for _ in range(reports):
        skip(REPORT_SECONDS)
        await let_all_run()


class FakeWorker:
    """A process that reports when the test says so."""

    pid = 1

    def __init__(self) -> None:
        self.stdin, self.stdout = MagicMock(), asyncio.StreamReader()
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def report(self, line: bytes = READY) -> None:
        self.stdout.feed_data(line)
        await let_all_run()

    def send_signal(self, number: int) -> None:
        self.stdout.feed_eof()
        self._code.set_result(-number)

    async def wait(self) -> int:
        return await self._code

    def is_killed(self) -> bool:
        return self._code.done()


async def let_all_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@contextmanager
def one_worker(models: Path) -> Iterator[Supervisor]:
    with ExitStack() as stack:
        port = stack.enter_context(reserve_port("127.0.0.1", 0)).getsockname()[1]
        settings = replace(quick_settings(models), port=port, workers=1)
        yield Supervisor(settings, stack.enter_context(metric_files(1)))


class FakeWorkers:
    """Takes the place of processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: asyncio.Queue[FakeWorker] = asyncio.Queue()
        monkeypatch.setattr(asyncio, "create_subprocess_exec", self._create)
        monkeypatch.setattr("polyhead_server.workers.supervisor._FIRST_PAUSE_SECONDS", 0.01)
        monkeypatch.setattr("polyhead_server.workers.supervisor.REPORT_SECONDS", REPORT_SECONDS)

    async def _create(self, *_: object, **__: object) -> FakeWorker:
        self.started.put_nowait(worker := FakeWorker())
        return worker


async def test_a_worker_is_killed_after_thirty_missed_reports(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started = FakeWorkers(monkeypatch).started
    with one_worker(Path("models")) as supervisor:
        running = asyncio.create_task(supervisor.run())
        first = await started.get()
        await let_all_run()
        await miss(299)  # it has not reported yet: it looks for its device
        assert not first.is_killed()
        for report in (LOADING, LOADING, READY, READY):
            await first.report(report)
            await miss(29)
            assert not first.is_killed()
        await miss(1)
        assert first.is_killed()

        second = await started.get()
        await let_all_run()
        await miss(299)
        await second.report()
        await miss(29)
        assert not second.is_killed()
        await miss(1)

        third = await started.get()
        await let_all_run()
        await miss(299)
        assert not third.is_killed()
        await miss(1)
        assert third.is_killed()  # it never reported

        fourth = await started.get()
        await let_all_run()
        await fourth.report()
        assert supervisor.restarts == [3]
        supervisor.stop()
        assert await running == 1  # a fake does not drain
    assert "worker 0 stands still, and is killed" in caplog.text
    assert "worker 0 has ended (SIGKILL)" in caplog.text


# ---- Workers spread over GPUs ----------------------------------------------------------------------


SETTINGS = Settings(models=Path("m"), device="cuda", workers=6)


def test_every_gpu_has_as_many_workers() -> None:
    devices = [settings_of(worker, SETTINGS, (0, 2, 3)).device for worker in range(6)]

    assert devices == ["cuda:0", "cuda:2", "cuda:3"] * 2


def test_without_gpus_each_worker_decides() -> None:
    assert settings_of(1, SETTINGS, ()) == SETTINGS
