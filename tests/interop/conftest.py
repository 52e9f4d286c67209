"""A server for clients that others wrote."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers import ServerProcess

TOKEN = "a-token-for-management"


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
