"""Lines of the log: text or JSON, and what they say of a request."""

import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from polyhead_server.observability.access_log import RequestRecord
from polyhead_server.observability.logs import LOGGER, configure, flush

X = np.ones((1, 3, 16), np.float32)


def test_text_has_time_level_and_worker(capfd: pytest.CaptureFixture[str]) -> None:
    configure("info", worker=3)
    LOGGER.debug("hidden")
    LOGGER.info("seen %d", 5)
    flush()

    line = capfd.readouterr().err
    assert line.endswith("Z INFO [3] seen 5\n")
    assert line.count("\n") == 1


def test_lines_never_reach_a_file_that_took_the_number_of_a_closed_standard_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "stderr").open("w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        configure("info")
        number = stderr.fileno()
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    if other != number:
        os.dup2(other, number)
    LOGGER.info("seen")
    flush()
    for file in {other, number}:
        os.close(file)

    assert (tmp_path / "stderr").read_text().endswith(" INFO seen\n")
    assert (tmp_path / "other").read_text() == ""


def test_json_is_one_object_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    configure("info", "json", worker=1)
    try:
        raise ValueError("why\nnot")
    except ValueError:
        LOGGER.exception("it failed", extra={"request_id": "r1"})
    LOGGER.info("fine")
    flush()

    first, second = (json.loads(line) for line in capfd.readouterr().err.splitlines())
    assert (first["level"], first["message"], first["request_id"], first["worker"]) == (
        "error",
        "it failed",
        "r1",
        1,
    )
    assert "ValueError: why\nnot" in first["exception"]
    assert set(second) == {"level", "message", "time", "worker"}


def test_what_libraries_warn_of_has_the_same_form(capfd: pytest.CaptureFixture[str]) -> None:
    configure("info")
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []  # pytest's own
    try:
        logging.getLogger("asyncio").error("a task failed")
        logging.getLogger("asyncio").info("not asked for")
    finally:
        root.handlers = handlers
    flush()

    assert capfd.readouterr().err.endswith("Z ERROR a task failed\n")


FLOOD = """
import sys
from polyhead_server.observability.logs import LOGGER, configure, flush
from polyhead_server.observability.access_log import RequestRecord

configure("info")
for number in range(30_000):
    LOGGER.info("line %d", number)
print("logged", flush=True)
sys.stdin.read()
flush(30)
LOGGER.info("the last")
"""


def test_when_none_reads_lines_are_dropped_and_counted() -> None:
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", FLOOD], text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "logged\n"
        _, log = process.communicate(timeout=240)

    assert process.returncode == 0
    lines = log.splitlines()
    assert lines[-1].endswith("INFO the last")
    # Several warnings, where the thread that writes gets a line out in between.
    dropped = re.findall(r"WARNING (\d+) messages were dropped: standard error was not read", log)
    assert sum(map(int, dropped)) > 10_000
    assert len(lines) - 1 - len(dropped) + sum(map(int, dropped)) == 30_000


class Collected(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, request_id: str) -> list[Any]:
        return [record for record in self.records if getattr(record, "request_id", None) == request_id]


def test_at_debug_every_inference_has_a_line_with_its_callers_name(serve: Any) -> None:
    collected = Collected()
    LOGGER.addHandler(collected)
    LOGGER.setLevel("DEBUG")
    server = serve()

    server.call("ModelInfer", server.request("tiny", {"x": X}), metadata=(("x-request-id", "mine-1"),))
    with pytest.raises(grpc.RpcError) as caught:
        server.call("ModelInfer", server.request("tiny", {"y": X}), metadata=(("x-request-id", "mine-2"),))
    error: Any = caught.value
    with pytest.raises(grpc.RpcError) as forging:
        server.call("ModelInfer", server.request("none", {"x": X}), metadata=(("x-request-id", "a b"),))
    forger: Any = forging.value
    server.drain(10)  # the line is written when the refusal is on its way already

    assert dict(error.trailing_metadata())["x-request-id"] == "mine-2"
    (fine,), (refused,) = collected.of("mine-1"), collected.of("mine-2")
    assert (fine.model, fine.version, fine.code) == ("tiny", 1, "OK")
    assert fine.seconds > 0
    assert (refused.model, refused.code) == ("tiny", "INVALID_ARGUMENT")
    assert error.details() in refused.getMessage()
    name = dict(forger.trailing_metadata())["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", name)  # not the caller's, which could forge a line
    assert len(collected.of(name)) == 1


def test_a_clock_that_is_set_back_makes_no_negative_times(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr(time, "time_ns", lambda: next(times))
    record = RequestRecord(request_id="r1")
    record.end()

    assert record.seconds > 0
    assert record.ended_ns > record.started_ns
