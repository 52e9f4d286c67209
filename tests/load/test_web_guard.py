"""Only the command line of locust decides where a server's secrets go."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.load.conftest import Fake
from tests.load.test_locust import Locust, end, locust

from polyhead_load.sweep.server import free_port

__all__ = ["locust"]

Post = Callable[..., tuple[int, str]]

SWARM = {"user_count": "1", "spawn_rate": "1"}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("a-token-that-is-long-enough\n")
    return path


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

        give_up = time.monotonic() + 240
        while True:
            try:
                post("/stats/requests")
                return post
            except OSError:  # it does not listen yet
                assert time.monotonic() < give_up
                time.sleep(0.1)

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


def test_a_run_with_a_wrong_option_is_refused_at_once(start: Callable[..., Post], host: str) -> None:
    post = start()

    for option, answer in (
        ({"rate": "abc"}, "--rate must be a number, was 'abc'\n"),
        ({"batch": "two"}, "--batch must be a number, was 'two'\n"),
        ({"tokens": "0"}, "tokens must be 1 or more, was 0\n"),
    ):
        assert post("/swarm", **SWARM, host=host, **option) == (400, answer)
    status, answer = post("/swarm", **SWARM, host=host, rate="-1")
    assert (status, answer.partition(",")[0]) == (400, "rate must be more than 0 requests a second")
    status, answer = post("/swarm", **SWARM, host=host, rate="", batch="2", text="false")
    assert (status, json.loads(answer)["success"]) == (200, True)


def test_a_token_goes_to_its_server_alone(start: Callable[..., Post], host: str, token_file: Path) -> None:
    post = start("--token-file", str(token_file))

    status, answer = post("/swarm", **SWARM, host="elsewhere:8001")
    assert status == 403
    assert answer.startswith(f"host must be {host}, ")
    assert answer.endswith("was elsewhere:8001\n")
    assert post("/swarm", **SWARM, host="")[0] == 403
    assert json.loads(post("/swarm", **SWARM, host=host, tokens="5")[1])["success"]


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (
            "environment.parsed_options.token_file = 'other'",
            "--token-file must be given when locust is started",
        ),
        ("environment.host = 'elsewhere:8001'", "host must be 127.0.0.1:"),
    ],
)
def test_a_run_that_would_send_them_elsewhere_does_not_begin(
    locust: Locust, host: str, token_file: Path, tmp_path: Path, change: str, answer: str
) -> None:
    (tmp_path / "mine.py").write_text(
        "from locust import events\n"
        "from polyhead_load.locustfile import ClosedLoop\n"
        "@events.init.add_listener\n"
        f"def change(environment, **_):\n    {change}\n"
    )

    process = locust("--host", host, "--headless", "--token-file", str(token_file), file=tmp_path / "mine.py")

    assert answer in end(process, code=2)[1]


def test_a_token_of_the_environment_goes_to_no_other_server_either() -> None:
    code = """
from argparse import Namespace
from polyhead_load.errors import LoadError
from polyhead_load.options import ACCESS
from polyhead_load.web_guard import WebGuard

access = dict.fromkeys(ACCESS)
guard = WebGuard(Namespace(**access), "near:1")
guard.check(access | {"host": "near:1"})
try:
    guard.check(access | {"host": "far:1"})
except LoadError as error:
    print(error)
"""
    environment = os.environ | {"POLYHEAD_TOKEN": "a-token-that-is-long-enough"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("host must be near:1, for which locust was given a token")
