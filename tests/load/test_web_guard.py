"""Only the command line of locust decides where a server's secrets go."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.load.conftest import Fake
from tests.load.test_locust import Locust, Page, locust

from polyhead_load.sweep.server import free_port

__all__ = ["locust"]

Post = Callable[..., tuple[int, str]]

SWARM = {"user_count": "1", "spawn_rate": "1"}


@pytest.fixture
def host(fake: Fake) -> str:
    return fake().address


@pytest.fixture
def start(locust: Locust, host: str) -> Callable[..., Post]:
    """Starts a web interface, and returns what posts a form to it."""

    def started(*arguments: str) -> Post:
        port = free_port()
        locust("--host", host, "--web-host", "127.0.0.1", "--web-port", str(port), *arguments)
        base = f"http://127.0.0.1:{port}"

        def post(path: str, origin: str | None = base, **form: str) -> tuple[int, str]:
            headers = {} if origin is None else {"Origin": origin}
            body = urllib.parse.urlencode(form).encode() if form else None
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(f"{base}{path}", body, headers), timeout=60
                ) as reply:
                    return int(reply.status), str(reply.read().decode())
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        Page(port).until("/stats/requests", bool)
        return post

    return started


def test_pages_of_other_sites_are_refused(start: Callable[..., Post], host: str, fake: Fake) -> None:
    post = start()

    for origin in ("http://example.org", "null", "http://127.0.0.1:1"):
        status, answer = post("/swarm", origin, **SWARM, host=host)
        assert status == 403
        assert answer.endswith(f"was {origin}\n")
        assert post("/stats/requests", origin)[0] == 403
    # Without secrets, any server can be called.
    for own in ({"host": host}, {"host": fake().address, "origin": None}):
        status, answer = post("/swarm", **own, **SWARM)
        assert (status, json.loads(answer)["success"]) == (200, True)


def test_what_the_form_does_not_show_cannot_be_filled_in(start: Callable[..., Post], host: str) -> None:
    post = start()

    for name in ("token_file", "server_tls", "client_key", "records", "web_login", "html_file"):
        status, answer = post("/swarm", **SWARM, host=host, **{name: "/etc/passwd"})
        assert status == 403
        assert answer == f"{name} must be given when locust is started, and not in the web interface\n"


@pytest.mark.parametrize("source", ["file", "environment"])
def test_a_token_goes_to_its_server_alone(
    start: Callable[..., Post], host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    path = tmp_path / "token"
    path.write_text("a-token-that-is-long-enough\n")
    if source == "environment":
        monkeypatch.setenv("POLYHEAD_TOKEN", path.read_text().strip())
    post = start(*(["--token-file", str(path)] if source == "file" else []))

    status, answer = post("/swarm", **SWARM, host="elsewhere:8001")
    assert status == 403
    assert answer.startswith(f"host must be {host}, ")
    assert answer.endswith("was elsewhere:8001\n")
    assert post("/swarm", **SWARM, host="")[0] == 403
    assert json.loads(post("/swarm", **SWARM, host=host, tokens="5")[1])["success"]
