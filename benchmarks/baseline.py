"""The server of another checkout, to compare two versions."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.encoders import BenchEncoder
from benchmarks.servers import ServerProcess, serve


@contextmanager
def baseline_server(checkout: Path, encoders: Sequence[BenchEncoder]) -> Iterator[ServerProcess]:
    """Serve the encoders by the code of another checkout, from a repository that it exports."""
    roots = ("model", "export", "proto", "server", "client", "load", "")
    environment = {"PYTHONPATH": os.pathsep.join(str(checkout / root) for root in roots)}
    models = checkout / "build" / "bench-models"
    code = (
        "import pathlib, sys, benchmarks.encoders as e\n"
        "e.export_missing([each for each in e.ENCODERS if each.name in sys.argv], pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(models), *(encoder.name for encoder in encoders)]
    subprocess.run(command, cwd=checkout, env=os.environ | environment, check=True)
    with serve(models, [], environment=environment) as server:
        yield server
