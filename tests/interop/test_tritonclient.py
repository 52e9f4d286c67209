"""An unmodified `tritonclient`, in an environment of its own, against `polyhead serve`."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("POLYHEAD_TRITON_PYTHON", ROOT / ".venv-triton" / "bin" / "python"))

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"no environment with tritonclient at {PYTHON} (POLYHEAD_TRITON_PYTHON names another)",
)


@pytest.fixture(scope="module")
def address(repository: Path) -> Iterator[str]:
    """A server process with the test repository; it must end well when told to stop."""
    command = [sys.executable, "-c", "from polyhead_client.command import main; raise SystemExit(main())"]
    flags = ["serve", "--models", str(repository), "--port", "0", "--device", "cpu", "--threads", "1"]
    with subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        log = ""
        # The log's first words say the port; a client waits for the models.
        while (found := re.search(r"listening on (\S+);", log)) is None:
            line = process.stderr.readline()
            assert line, f"the server ended: {log}"
            log += line
        yield found[1]
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=30)
        assert process.returncode == 0, log + rest


@pytest.mark.parametrize("first", ["polyhead", "triton"])
def test_every_call_works_whichever_client_is_imported_first(address: str, first: str) -> None:
    script = Path(__file__).with_name("tritonclient_calls.py")

    done = subprocess.run(
        [PYTHON, script, address, first], check=False, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "all calls worked\n"
