"""An unmodified `tritonclient`, in an environment of its own, against `polyhead serve`."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.interop.conftest import TOKEN

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("POLYHEAD_TRITON_PYTHON", ROOT / ".venv-triton" / "bin" / "python"))

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"no environment with tritonclient at {PYTHON} (POLYHEAD_TRITON_PYTHON names another)",
)


@pytest.mark.parametrize("first", ["polyhead", "triton"])
def test_every_call_works_whichever_client_is_imported_first(address: str, first: str) -> None:
    script = Path(__file__).with_name("tritonclient_calls.py")

    done = subprocess.run(
        [PYTHON, script, address, first, TOKEN], check=False, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "all calls worked\n"
