"""The assignment of a worker, and its reports."""

import asyncio
import dataclasses
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from polyhead_server import Settings
from polyhead_server.workers.worker import ASSIGNMENTS, LOADING, READY, Assignment, Supervised

ASSIGNMENT = Assignment(settings=Settings(models=Path("models")), worker=0, restarts=0)


def test_an_assignment_arrives_as_it_was_sent() -> None:
    settings = Settings(
        models=Path("models with blanks"), port=5, tls_cert=Path("ü.pem"), http_port=0, drain_seconds=1.5
    )
    sent = Assignment(settings=settings, worker=3, restarts=2)

    line = ASSIGNMENTS.dump_json(sent)

    assert b"\n" not in line
    assert ASSIGNMENTS.validate_json(line) == sent
    assert {field.name for field in dataclasses.fields(settings)} <= set(line.decode().split('"'))


async def test_a_worker_reports_regularly_that_it_loads_and_then_that_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polyhead_server.workers.worker.REPORT_SECONDS", 0.01)
    source, sink = os.pipe()
    reports = Supervised(sink, ASSIGNMENT)

    keeping = asyncio.create_task(reports.keep_reporting())
    with open(source, "rb", closefd=False) as lines:  # noqa: ASYNC230 - a pipe
        for expected in (LOADING, LOADING, READY, READY):
            if expected == READY:
                reports.ready()
            line = await asyncio.to_thread(lines.readline)
            while expected == READY and line == LOADING:  # it was on its way
                line = await asyncio.to_thread(lines.readline)
            assert line == expected
    keeping.cancel()
    os.close(source)
    reports.ready()  # to nobody
    os.close(sink)


def test_a_report_is_lost_rather_than_waited_for() -> None:
    source, sink = os.pipe()
    reports = Supervised(sink, ASSIGNMENT)
    with suppress(BlockingIOError):
        while True:
            os.write(sink, b"\n" * 4096)
    reports.ready()
    assert READY.strip() not in os.read(source, 1 << 20)
    reports.ready()
    assert os.read(source, 1 << 20) == READY
    for file in (source, sink):
        os.close(file)


def test_the_process_above_loads_nothing_that_computes() -> None:
    heavy = {"onnx", "onnxruntime", "numpy", "tokenizers"}
    code = "import sys, polyhead_server.workers.supervisor; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    assert not heavy & set(modules.split())
