"""An unmodified `tritonclient`, in an environment of its own, against `polyhead serve`."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers import ServerProcess

TOKEN = "a-token-for-management"
ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("POLYHEAD_TRITON_PYTHON", ROOT / ".venv-triton" / "bin" / "python"))

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"no environment with tritonclient at {PYTHON} (POLYHEAD_TRITON_PYTHON names another)",
)


@pytest.fixture(scope="module")
def address(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server process with the test repository; it must end well when told to stop."""
    tokens = tmp_path_factory.mktemp("tokens") / "management"
    tokens.write_text(TOKEN)
    settings = ["--models", str(repository), "--port", "0", "--device", "cpu", "--threads", "1"]
    management = ["--repository-mode", "explicit", "--management-token-file", str(tokens)]
    server = ServerProcess(*settings, *management)
    try:
        # The log's first words say the port; a client waits for the models.
        yield server.until(r"listening on (\S+);")[1]
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0, server.log
    finally:
        server.close()


@pytest.mark.parametrize("first", ["polyhead", "triton"])
def test_every_call_works_whichever_client_is_imported_first(address: str, first: str) -> None:
    script = Path(__file__).with_name("tritonclient_calls.py")

    done = subprocess.run(
        [PYTHON, script, address, first, TOKEN], check=False, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "all calls worked\n"
