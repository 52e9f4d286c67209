"""Our accept queue, which uses private names of grpcio, with the oldest grpcio that the server takes."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("POLYHEAD_OLDEST_GRPC_PYTHON", ROOT / ".venv-oldest-grpc" / "bin" / "python"))

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"no environment with an old grpcio at {PYTHON} (POLYHEAD_OLDEST_GRPC_PYTHON names another)",
)


def test_the_accept_queue_works_with_it() -> None:
    tests = "tests/server/transport/test_accept_queue.py"

    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=800,
    )

    assert done.returncode == 0, done.stdout + done.stderr
