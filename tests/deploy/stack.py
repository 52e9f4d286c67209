"""A compose project of the tests' own: images, ports and volumes that nothing else uses."""

import json
import os
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.deploy.compose_file import ROOT

from polyhead_load.sweep.server import free_port

PORTS = (
    "POLYHEAD_PORT",
    "POLYHEAD_HTTP_PORT",
    "PROMETHEUS_PORT",
    "GRAFANA_PORT",
    "LOCUST_PORT",
    "EXPLORER_PORT",
)


def run(
    *command: str | Path,
    check: bool = True,
    timeout: float = 600,
    stderr: int | None = subprocess.STDOUT,
    **more: Any,
) -> str:
    """Runs a command; what it printed, with its standard error unless that goes elsewhere.

    Raises:
        AssertionError: It failed, and must not.
    """
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=timeout,
        check=False,
        **more,
    )
    assert done.returncode == 0 or not check, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return str(done.stdout)


def can_be_had(image: str) -> bool:
    """The image is here, or can be pulled."""
    with suppress(AssertionError, subprocess.TimeoutExpired):
        run("docker", "image", "inspect", image)
        return True
    with suppress(AssertionError, subprocess.TimeoutExpired):
        run("docker", "pull", "--quiet", image)
        return True
    return False


def volumes() -> set[str]:
    """All volumes of the engine."""
    return set(run("docker", "volume", "ls", "--quiet").split())


class Stack:
    """One project.

    Args:
        name: The project's, and its images' tag.
        settings: What a user would write into `.env`.
    """

    def __init__(self, name: str, *, tag: str, **settings: str) -> None:
        self.name = name
        self.ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        self.settings = {"POLYHEAD_TAG": tag} | settings

    def __call__(
        self,
        *arguments: str,
        check: bool = True,
        timeout: float = 600,
        stderr: int | None = subprocess.STDOUT,
        settings: Mapping[str, str] | None = None,
    ) -> str:
        """Runs `docker compose` with these arguments; what it printed, as `run` has it."""
        ours = ("POLYHEAD_", "COMPOSE_", "LOCUST_", "PROMETHEUS_", "GRAFANA_", "EXPLORER_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        values = {name: str(port) for name, port in self.ports.items()} | self.settings | dict(settings or {})
        # As a user would write it; and nothing of what the developer has in .env.
        with tempfile.NamedTemporaryFile("w", suffix=".env") as written:
            written.writelines(f"{name}={value}\n" for name, value in values.items())
            written.flush()
            command = ["docker", "compose", "--project-name", self.name, "--env-file", written.name]
            return run(
                *command, *arguments, check=check, timeout=timeout, stderr=stderr, cwd=ROOT, env=environment
            )

    @property
    def address(self) -> str:
        """The server's, on this machine."""
        return f"127.0.0.1:{self.ports['POLYHEAD_PORT']}"

    def container(self, service: str) -> dict[str, Any]:
        """What the engine says about a service's only container."""
        identity = self("ps", "--all", "--quiet", service).strip()
        (found,) = json.loads(run("docker", "inspect", identity))
        return dict(found)

    def health(self, service: str = "server") -> str:
        """starting, healthy or unhealthy; or what the container is, where it does not run."""
        state = self.container(service)["State"]
        return str(state["Health"]["Status"] if state["Running"] else state["Status"])

    def until_healthy(self, service: str = "server", *, seconds: float = 600) -> float:
        """Waits until a service is healthy; how long that took."""
        started = time.monotonic()
        while (health := self.health(service)) != "healthy":
            passed = time.monotonic() - started
            assert passed < seconds, f"{service} is {health} after {passed:.0f} s:\n{self('logs', service)}"
            time.sleep(0.2)
        return time.monotonic() - started

    def get(self, service: str, path: str, data: Mapping[str, str] | None = None) -> str:
        """What a service says over HTTP, or to a form."""
        return self.http(service, path, None if data is None else urllib.parse.urlencode(data), {})

    def post(self, service: str, path: str, document: Any) -> Any:
        """What a service says to JSON, in JSON."""
        headers = {"Content-Type": "application/json"}
        return json.loads(self.http(service, path, json.dumps(document), headers))

    def http(self, service: str, path: str, body: str | None, headers: dict[str, str]) -> str:
        """What a service says over HTTP to a body, with headers."""
        url = f"http://127.0.0.1:{self.ports[f'{service.upper()}_PORT']}{path}"
        data = None if body is None else body.encode()
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=120) as reply:
            return str(reply.read().decode())

    def ask(self, query: str) -> list[dict[str, Any]]:
        """What Prometheus answers to a query."""
        said = self.get("prometheus", f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")
        result: list[dict[str, Any]] = json.loads(said)["data"]["result"]
        return result

    def left(self) -> list[str]:
        """Containers and networks that still exist."""
        label = f"label=com.docker.compose.project={self.name}"
        containers = run("docker", "ps", "--all", "--filter", label, "--format", "{{.Names}}")
        return (
            containers + run("docker", "network", "ls", "--filter", label, "--format", "{{.Name}}")
        ).split()


def _free_ports(count: int) -> set[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return ports
