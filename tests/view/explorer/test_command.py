"""`polyhead explore`, as a process and where it cannot start."""

import re
import signal
import subprocess
import sys
import urllib.request
import webbrowser
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from polyhead_client import InvalidRequest
from polyhead_client.command import GROUP, build_app
from polyhead_view.explorer.command import app

COMMAND = (sys.executable, "-c", "from polyhead_view.explorer.command import app; app()")


def test_the_page_is_served_until_it_is_stopped() -> None:
    """No server is needed to start: the page waits for one."""
    command = [*COMMAND, "--port", "0", "--address", "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.fullmatch(r"The explorer of 127\.0\.0\.1:1 is at (http://127\.0\.0\.1:\d+/)\n", said)
            assert found is not None
            with urllib.request.urlopen(found[1], timeout=60) as answer:
                assert b"<title>polyhead explorer" in answer.read()
        finally:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=240)
    assert errors == ""


def test_access_is_checked_before_anything_starts(tmp_path: Path) -> None:
    empty = tmp_path / "token"
    empty.write_text("")

    with pytest.raises(InvalidRequest, match="--token-file must hold a token"):
        app(["--port", "0", "--token-file", str(empty)], result_action="return_value")
    with pytest.raises(FileNotFoundError):
        app(["--port", "0", "--tls-ca", str(tmp_path / "missing")], result_action="return_value")
    with pytest.raises(InvalidRequest, match="target must be host:port"):
        app(["--port", "0", "--address", "nowhere"], result_action="return_value")


def test_options_come_from_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the compose stack gives them."""
    servers: list[uvicorn.Server] = []
    opened: list[str] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, **_: servers.append(server))
    monkeypatch.setattr(webbrowser, "open", opened.append)
    for name, value in {"HOST": "0.0.0.0", "PORT": "0", "ALLOW_HOST": "lab other", "OPEN": "true"}.items():
        monkeypatch.setenv(f"POLYHEAD_EXPLORE_{name}", value)
    point = EntryPoint("explore", "polyhead_view.explorer.command:app", GROUP)

    build_app([point])(["explore"], result_action="return_value")

    page: Any = servers[0].config.app
    for host, status in {"lab": 200, "other": 200, "127.0.0.1": 200, "third": 400}.items():
        assert TestClient(page, base_url=f"http://{host}").get("/").status_code == status
    assert opened[0].startswith("http://0.0.0.0:")
    assert "does not authenticate" in capsys.readouterr().err
