"""Dashboard and alerts ask only for what a server really exports, and Prometheus is let in."""

import importlib
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.deploy.compose_file import ROOT, services
from tests.pages import block
from tests.servers import ServerProcess

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "polyhead.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [target for panel in PANELS for target in panel["targets"]]


def load(path: str) -> Any:
    yaml: Any = importlib.import_module("yaml")
    return yaml.safe_load((ROOT / "deploy" / path).read_text())


RULES = [rule for group in load("prometheus/alerts.yml")["groups"] for rule in group["rules"]]
QUERIES = [
    *(target["expr"] for target in TARGETS),
    *(rule["expr"] for rule in RULES),
    *(note["expr"] for note in DASHBOARD["annotations"]["list"]),
    *(variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable),
]


@pytest.fixture(scope="module")
def exported(repository: Path) -> Iterator[set[str]]:
    """The names of all samples at /metrics, after a request that was answered and one that was dropped."""
    free = ["--device", "cpu", "--threads", "1", "--port", "0", "--http-port", "0", "--http"]
    server = ServerProcess("--models", str(repository), *free)
    try:
        url = server.until(r"metrics on (\S+)/metrics")[1]
        server.until("serving .* on")
        x = {"name": "x", "datatype": "FP32", "shape": [1, 2, 16], "data": [0.0] * 32}
        infer = urllib.request.Request(f"{url}/v2/models/tiny/infer", json.dumps({"inputs": [x]}).encode())
        infer.add_header("Content-Type", "application/json")
        names: set[str] = set()
        while "polyhead_drops_total" not in names:  # a deadline may pass before there is work to drop
            infer.remove_header("X-request-timeout")
            with urllib.request.urlopen(infer, timeout=120) as reply:
                assert reply.status == 200
            infer.add_header("X-Request-Timeout", "0.000001")
            with pytest.raises(HTTPError, match="504") as late:
                urllib.request.urlopen(infer, timeout=120)
            late.value.close()
            with urllib.request.urlopen(f"{url}/metrics", timeout=120) as reply:
                families = text_string_to_metric_families(reply.read().decode())
                names = {sample.name for family in families for sample in family.samples}
        yield names
    finally:
        server.close()


@pytest.mark.parametrize("query", QUERIES)
def test_queries_name_what_is_exported(query: str, exported: set[str]) -> None:
    names = set(re.findall(r"\b(?:polyhead|process)_\w+", query))

    assert names
    assert names <= exported


def test_prometheus_is_let_in_with_the_token_of_the_stack() -> None:
    prometheus = services()["prometheus"]
    (job,) = load(prometheus["command"][0].removeprefix("--config.file=/etc/"))["scrape_configs"]

    assert job["authorization"] == {"credentials_file": "/run/secrets/token"}
    assert prometheus["secrets"] == ["token"]


def test_the_page_scrapes_as_the_stack_does() -> None:
    yaml: Any = importlib.import_module("yaml")
    (job,) = yaml.safe_load(block("docs/operations.md", "scrape_configs"))["scrape_configs"]
    (ours,) = load("prometheus/prometheus.yml")["scrape_configs"]

    assert job["job_name"] == ours["job_name"]
    assert job.keys() - {"static_configs", "scheme", "tls_config"} <= ours.keys(), (
        "inside the stack there is no TLS"
    )
