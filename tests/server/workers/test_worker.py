"""The assignment of a worker."""

import dataclasses
import subprocess
import sys
from pathlib import Path

from polyhead_server import Settings
from polyhead_server.workers.worker import Assignment


def test_an_assignment_arrives_as_it_was_sent() -> None:
    settings = Settings(
        models=Path("models with blanks"), port=5, tls_cert=Path("ü.pem"), http_port=0, drain_seconds=1.5
    )
    sent = Assignment(settings=settings, worker=3, files=(7, 9), restarts=2)

    line = sent.to_line()

    assert line.count(b"\n") == 1
    assert Assignment.from_line(line) == sent
    assert {field.name for field in dataclasses.fields(settings)} <= set(line.decode().split('"'))


def test_the_process_above_loads_nothing_that_computes() -> None:
    heavy = {"onnx", "onnxruntime", "numpy", "tokenizers"}
    code = "import sys, polyhead_server.workers.supervisor; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    assert not heavy & set(modules.split())
