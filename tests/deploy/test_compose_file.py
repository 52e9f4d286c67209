"""What docker-compose.yml promises: locked containers, loopback ports, an orderly stop, and every setting."""

import dataclasses
import re
import shlex
from typing import Any

import pytest
from tests.deploy.compose_file import ROOT, TEXT, read, seconds, services, variables
from tests.deploy.proxy import CONFIGURATION

from polyhead_server import Settings

SERVERS = ("server", "server-gpu")
PROXIES = ("proxy", "proxy-gpu")
OURS = (*SERVERS, *PROXIES, "export", "locust", "locust-worker", "explorer")

FIXED = {
    *("models", "host", "port", "http", "http_host", "http_port", "compute_precision", "device"),
    *("tls_cert", "tls_key", "tls_client_ca", "token_file", "management_token_file"),
}
"""Settings that the image, the compose file or the proxy makes: addresses, protocols, paths, the device."""


@pytest.mark.parametrize("name", services())
def test_containers_have_nothing_that_they_do_not_need(name: str) -> None:
    service = services()[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] > 0
    assert service["logging"]["driver"] == "local", "whose logs have an end"
    assert "privileged" not in service
    assert service.get("user", "10001:10001").split(":")[0] not in {"0", "root"}
    assert not service.get("cap_add")


@pytest.mark.parametrize("name", services())
def test_ports_are_on_loopback_and_differ(name: str) -> None:
    every = [port for service in services().values() for port in service.get("ports", [])]
    assert len({port.rsplit(":", 1)[0] for port in every}) == len(every)
    for port in services()[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


@pytest.mark.parametrize(
    ("variable", "opened"),
    [
        ("POLYHEAD_BIND", {"8001", "8002", "8011", "8012"}),
        ("POLYHEAD_INTERNAL_BIND", {"8003", "8089", "9090", "3000"}),
    ],
)
def test_what_asks_for_no_token_is_opened_on_its_own(variable: str, opened: set[str]) -> None:
    every = [port for one in services({variable: "0.0.0.0"}).values() for port in one.get("ports", [])]

    assert {port.split(":")[1] for port in every if port.startswith("0.0.0.0:")} == opened
    assert all(port.startswith(("0.0.0.0:", "127.0.0.1:")) for port in every)


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_waits_for_the_export_and_stops_after_its_drain(name: str) -> None:
    server = services()[name]

    assert server["depends_on"] == {"export": {"condition": "service_completed_successfully"}}
    assert seconds(server["stop_grace_period"]) > Settings(models=ROOT).drain_seconds + 5
    assert server["restart"] == "unless-stopped"
    assert "models:/models:ro" in server["volumes"]
    assert server["healthcheck"]["test"] == ["CMD", "python", "/opt/health.py"]
    assert "ports" not in server, "callers reach the proxy"


@pytest.mark.parametrize(("name", "behind"), list(zip(PROXIES, SERVERS, strict=True)))
def test_a_proxy_is_in_front_of_each_server(name: str, behind: str) -> None:
    proxy = services()[name]
    settings = proxy["environment"]

    # So that it is stopped before.
    assert proxy["depends_on"] == [behind]
    assert proxy.get("profiles") == services()[behind].get("profiles")
    for protocol, port in (("GRPC", 8001), ("HTTP", 8002)):
        (default,) = set(re.findall(rf"POLYHEAD_PROXY_{protocol}_SERVER-([\w:]+)", CONFIGURATION.read_text()))
        assert settings.get(f"POLYHEAD_PROXY_{protocol}_SERVER", default) == f"{behind}:{port}"
    assert {port.rsplit(":", 1)[1] for port in proxy["ports"]} == {"8001", "8002"}
    assert settings["POLYHEAD_PROXY_SECONDS"] == Settings(models=ROOT).max_request_seconds
    longer = services({"POLYHEAD_SERVE_MAX_REQUEST_SECONDS": "900"})[name]
    assert longer["environment"]["POLYHEAD_PROXY_SECONDS"] == 900
    # HAProxy reads no fractions.
    fraction = {"POLYHEAD_SERVE_MAX_REQUEST_SECONDS": "0.5", "POLYHEAD_PROXY_SECONDS": "1"}
    assert services(fraction)[name]["environment"]["POLYHEAD_PROXY_SECONDS"] == 1


def test_tls_ends_at_the_proxy() -> None:
    flags = {
        (): "",
        ("CERT",): "ssl crt /run/secrets/tls.crt",
        ("CERT", "CLIENT_CA"): (
            "ssl crt /run/secrets/tls.crt verify required ca-file /run/secrets/tls_client_ca"
        ),
    }
    for names, expected in flags.items():
        found = services({f"POLYHEAD_TLS_{name}": "./a-file" for name in names})
        for proxy in PROXIES:
            assert " ".join(found[proxy]["environment"]["POLYHEAD_PROXY_TLS"].split()) == expected
        assert all("tls" not in found[server]["command"] for server in SERVERS)
    for proxy in PROXIES:
        secrets = {one if isinstance(one, str) else one["target"] for one in services()[proxy]["secrets"]}
        assert secrets == {"tls.crt", "tls.key", "tls_client_ca"}


def test_the_export_runs_once_and_without_a_network() -> None:
    export = services()["export"]

    assert export["restart"] == "no"
    assert export["network_mode"] == "none"
    assert export["volumes"] == ["models:/models"]


def test_profiles_are_what_the_documentation_says() -> None:
    every = services().items()
    assert {name for name, one in every if "profiles" not in one} == {"export", "server", "proxy"}
    found = {profile for _, one in every for profile in one.get("profiles", [])}
    assert found == {"gpu", "explorer", "load", "observability"}
    (device,) = services()["server-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert "deploy" not in services()["server"]


def test_every_setting_can_be_made() -> None:
    settings = {field.name for field in dataclasses.fields(Settings)} - FIXED

    for name in SERVERS:
        environment: dict[str, Any] = services()[name]["environment"]
        ours = {variable for variable in environment if not variable.startswith("OTEL_")}
        assert ours == {f"POLYHEAD_SERVE_{setting.upper()}" for setting in settings}
        assert "OTEL_EXPORTER_OTLP_ENDPOINT" in environment
        assert set(environment.values()) == {None}, "values come from .env, defaults from the server"


def test_every_option_of_a_load_can_be_given() -> None:
    options = re.findall(r"add\(\s*\"--([\w-]+)\"", (ROOT / "load/polyhead_load/options.py").read_text())
    variables = {f"POLYHEAD_LOAD_{option.replace('-', '_').upper()}" for option in options}

    for name in ("locust", "locust-worker"):
        # Records and certificates are files, and nothing is mounted for them.
        left_out = {
            f"POLYHEAD_LOAD_{name}"
            for name in ("RECORDS", "SERVER_TLS", "SERVER_CA", "CLIENT_CERT", "CLIENT_KEY")
        }
        assert set(services()[name]["environment"]) == variables - left_out | {"LOCUST_HOST"}


def test_the_explorer_is_let_in_with_the_token_of_the_server() -> None:
    assert shlex.split(services()["explorer"]["command"]) == ["--port", "8003"]
    command = shlex.split(services({"POLYHEAD_TOKEN_FILE": "./some-file"})["explorer"]["command"])
    assert command[2:] == ["--token-file", "/run/secrets/token"]
    assert services()["explorer"]["secrets"] == ["token"]


def test_secrets_come_from_files_and_their_flags_only_with_them() -> None:
    flags = {
        "POLYHEAD_TOKEN_FILE": ["--token-file"],
        "POLYHEAD_MANAGEMENT_TOKEN_FILE": ["--management-token-file"],
    }
    for name in SERVERS:
        assert shlex.split(services()[name]["command"]) == ["--models", "/models", "--http"]
    for variable, expected in flags.items():
        command = shlex.split(services({variable: "./some-file"})["server"]["command"])
        assert [word for word in command if word.startswith("--")] == ["--models", "--http", *expected]
        for path in command[4::2]:
            assert path.removeprefix("/run/secrets/") in services()["server"]["secrets"]
    for secret in read()["secrets"].values():
        assert (ROOT / secret["file"]).read_bytes() == b""


def test_images_are_built_here_or_have_a_version() -> None:
    for name, service in services().items():
        if name in OURS:
            assert service["image"].startswith("polyhead-")
            assert service["pull_policy"] == "never", "it is in no registry"
        else:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])


def test_the_example_lists_every_variable_with_its_default() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    matches = (re.fullmatch(r"#([A-Z_]+)=(.*)", line) for line in lines)
    listed = {match[1]: match[2] for match in matches if match}
    defaults = dict(re.findall(r"\$\{(\w+):?-([^{}]*)\}", TEXT))

    exported = set(services()["export"]["environment"])
    passed = {
        name
        for name in listed
        if name.startswith(("POLYHEAD_SERVE_", "POLYHEAD_LOAD_", "POLYHEAD_EXPLORE_", "OTEL_"))
    }
    own = passed - variables() | {"COMPOSE_PROFILES"} | exported
    assert set(listed) - own == variables()
    assert exported <= set(listed)
    for name in passed:
        service = {"LOAD": "locust", "EXPLORE": "explorer"}.get(name.split("_")[1], "server")
        assert name in services()[service]["environment"]
    for name, value in listed.items():
        if name in defaults and "deploy/nothing" not in defaults[name]:
            assert value == defaults[name], name
