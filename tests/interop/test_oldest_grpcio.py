"""Our accept queue, which uses private names of grpcio, with the oldest grpcio that the server takes."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from polyhead_server.transport.grpcio_check import TESTED_GRPCIO

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("POLYHEAD_OLDEST_GRPC_PYTHON", ROOT / ".venv-oldest-grpc" / "bin" / "python"))


def test_it_is_the_oldest_that_the_server_takes_and_the_newest_is_ours() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
        "server"
    ]
    newest = re.search(r"^grpcio==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)

    assert newest is not None
    assert f"grpcio-health-checking>={TESTED_GRPCIO[0]}" in packages
    assert newest[1] == TESTED_GRPCIO[1]


@pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"no environment with an old grpcio at {PYTHON} (POLYHEAD_OLDEST_GRPC_PYTHON names another)",
)
def test_the_accept_queue_works_with_it() -> None:
    tests = [f"tests/server/transport/test_{name}.py" for name in ("accept_queue", "grpcio_check")]

    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=800,
    )

    assert done.returncode == 0, done.stdout + done.stderr
