"""`polyhead serve` as a process: its log, its signals and its exit code."""

import fcntl
import http.client
import json
import queue
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.server.conftest import Running, procedure
from tests.servers import COMMAND, Callers, ServerProcess

from polyhead_load.sweep.server import free_port
from polyhead_server.engine.devices import choose_device

X = np.ones((4, 40, 16), np.float32)


@pytest.fixture
def start(repository: Path) -> Iterator[Any]:
    started: list[ServerProcess] = []

    def run(*arguments: str, models: Path = repository, port: int = 0) -> ServerProcess:
        settings = ["--models", str(models), "--port", str(port), "--threads", "1"]
        started.append(ServerProcess(*settings, *arguments))
        return started[-1]

    yield run
    for one in started:
        one.close()


def infer(channel: grpc.Channel) -> Any:
    return procedure(channel, "ModelInfer")(Running.request("tiny.attention", {"x": X}), timeout=120)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_loses_no_accepted_request(
    start: Any, number: signal.Signals, device: str
) -> None:
    server = start("--device", device)
    address = server.until(rf"serving .* on (\S+) with {choose_device(device).provider}")[1]
    callers = Callers(address, infer, count=4)
    callers.wait_for_answers(20)
    server.process.send_signal(number)
    callers.wait_until_ended()

    assert server.end() == 0
    assert callers.codes == [grpc.StatusCode.UNAVAILABLE] * 4
    assert f"{number.name} received" in server.log
    assert "stopped" in server.log
    assert "Traceback" not in server.log


def test_sigterm_under_load_over_http_ends_well_too(start: Any) -> None:
    """Each request is answered, or its connection refused; the process ends with 0."""
    server = start("--device", "cpu", "--http", "--http-port", "0")
    port = int(server.until(r"inference over HTTP on http://127\.0\.0\.1:(\d+)/v2")[1])
    server.until("serving")
    tensor = {"name": "x", "datatype": "FP32", "shape": X.shape, "data": X.ravel().tolist()}
    body = json.dumps({"inputs": [tensor], "outputs": [{"name": "output"}]})
    answered: queue.SimpleQueue[int] = queue.SimpleQueue()

    def call() -> None:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            try:
                connection.request(
                    "POST", "/v2/models/tiny/infer", body, {"Content-Type": "application/json"}
                )
                status = connection.getresponse().status
            except ConnectionError:
                return  # nothing is accepted any more
            finally:
                connection.close()
            answered.put(status)
            if status != 200:
                return

    with ThreadPoolExecutor(4) as callers:
        calling = [callers.submit(call) for _ in range(4)]
        codes = [answered.get(timeout=120) for _ in range(20)]
        server.process.send_signal(signal.SIGTERM)
        for each in calling:
            each.result(240)
    while not answered.empty():
        codes.append(answered.get())

    assert server.end() == 0
    assert codes[:20] == [200] * 20
    assert set(codes) <= {200, 503}
    assert "SIGTERM received" in server.log
    assert "stopped" in server.log
    assert "Traceback" not in server.log


def test_ctrl_c_ends_a_drain_and_another_sigterm_does_not(start: Any, device: str) -> None:
    patient = ("--drain-seconds", "600", "--max-wait-seconds", "600", "--max-queued-tokens", "1000000")
    server = start("--device", device, *patient)
    address = server.until(r"serving .* on (\S+) with")[1]
    request = Running.request(
        "tiny.attention", {"x": np.zeros((1, 1500, 16), np.float32)}, outputs=["output"]
    )
    with grpc.insecure_channel(address) as channel:
        method = procedure(channel, "ModelInfer")
        answered: queue.SimpleQueue[bool] = queue.SimpleQueue()
        # Half a minute's work, most of which is never done: which calls are let in first is not said.
        for _ in range(300):
            method.future(request, timeout=600).add_done_callback(
                lambda call: answered.put(call.code() is grpc.StatusCode.OK)
            )
        assert answered.get(timeout=240)
        server.process.send_signal(signal.SIGTERM)
        server.until("draining: [1-9]")
        server.process.send_signal(signal.SIGTERM)
        while not answered.empty():
            answered.get()
        while not answered.get(timeout=240):
            pass
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)

        assert server.end() == -signal.SIGINT


def test_a_signal_while_it_loads_ends_it_and_leaves_nothing(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = start("--device", "cpu")
    server.until("loading models")
    server.process.send_signal(signal.SIGTERM)

    assert server.end() == 0
    assert list(tmp_path.glob("polyhead-*")) == []


def test_a_log_that_is_not_read_holds_up_neither_answers_nor_the_end(repository: Path, device: str) -> None:
    port = free_port()
    settings = ["--models", str(repository), "--port", str(port), "--device", device, "--log-level", "debug"]
    with subprocess.Popen([*COMMAND, *settings, "--http-port", "off"], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                method = procedure(channel, "ServerReady")
                while not method(b"", wait_for_ready=True, timeout=240).ready:
                    time.sleep(0.1)
                for _ in range(200):  # each has a line
                    infer(channel)
            process.send_signal(signal.SIGTERM)
            assert process.wait(240) == 0
        finally:
            process.kill()


def test_what_cannot_be_served_exits_with_1_and_says_why(
    start: Any, tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "bad" / "tiny" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "tiny" / "1" / "manifest.json").write_text("{}")
    (tmp_path / "checkpoint" / "1_Pooling").mkdir(parents=True)
    (tmp_path / "checkpoint" / "modules.json").write_text("[]")
    started = {
        "no model could be loaded: tiny 1: manifest.json is not valid": start(models=tmp_path / "bad"),
        "is a checkpoint: `polyhead serve --checkpoint": start(models=tmp_path / "checkpoint"),
        "must be a folder that can be read": start(models=tmp_path / "none"),
        "cannot listen on nonsense..:0: it must be the name of a host": start("--host", "nonsense.."),
    }
    for message, server in started.items():
        assert server.end() == 1
        assert message in server.log
        assert "Traceback" not in server.log


def test_what_a_killed_load_left_is_removed_at_the_next_start(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    abandoned = tmp_path / "polyhead-copy-of-a-killed-load"
    abandoned.mkdir()
    (abandoned / "weights.bin").write_bytes(b"weights")
    server = start("--device", "cpu")
    server.until(f"removed {abandoned}, which a server left")
    server.until("serving")
    assert not abandoned.exists()
