"""Dashboard and alerts ask only for what a server really tells, and in ways that make sense."""

import importlib
import json
import re
from typing import Any

import pytest
from tests.deploy.compose_file import ROOT, services
from tests.pages import block

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "polyhead.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [target for panel in PANELS for target in panel["targets"]]
SCRAPED = {"job", "instance", "namespace"}
"""Labels that Prometheus adds, on Kubernetes with the last."""


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


@pytest.mark.parametrize("query", QUERIES)
def test_queries_name_what_is_exported(query: str, exported: dict[str, set[str]]) -> None:
    names = set(re.findall(r"\b(?:polyhead|process)_\w+", query))
    assert names
    assert "job=" not in query, "it depends on what has found the targets"
    assert names <= set(exported)
    known = set().union(*(exported[name] for name in names)) | SCRAPED
    for name, matchers in re.findall(r"\b(\w+)\{([^}]*)\}", query):
        labels = set(re.findall(r"(\w+)\s*[!=]~?\s*\"", matchers))
        assert labels <= exported.get(name, set()) | SCRAPED, f"{name} has no such labels"
    for labels in re.findall(r"by \(([^)]*)\)", query):
        assert set(labels.split(", ")) <= known


@pytest.mark.parametrize("query", QUERIES)
def test_queries_treat_counters_as_counters(query: str, exported: dict[str, set[str]]) -> None:
    rated = set(re.findall(r"\b(?:rate|increase)\((\w+)", query))
    for name in rated:
        assert exported[name] & {"type=counter", "type=histogram"}
    for name in set(re.findall(r"\b(?:polyhead|process)_\w+", query)) - rated:
        assert "type=gauge" in exported[name] or query.startswith("label_values(")
    for inside in re.findall(r"histogram_quantile\([\d.]+, sum by \(([^)]*)\)", query):
        assert "le" in inside.split(", ")
    assert query.count("histogram_quantile(") == len(re.findall(r"histogram_quantile\([\d.]+, sum by", query))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"])
def test_legends_name_labels_that_the_query_keeps(
    target: dict[str, Any], exported: dict[str, set[str]]
) -> None:
    kept = re.findall(r"\bsum by \(([^)]*)\)", target["expr"])
    labels = set(kept[0].split(", ")) if kept else set[str]()
    if "sum" not in target["expr"]:
        (name,) = re.findall(r"\b(?:polyhead|process)_\w+", target["expr"])
        labels = exported[name] | SCRAPED

    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_panels_do_not_overlap_and_have_names_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    for key in ("id", "title"):
        assert len({panel[key] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ([], {}),
        (["TLS_CERT"], {"server_name": "server", "ca_file": "server_ca"}),
        (
            ["TLS_CERT", "TLS_CLIENT_CA"],
            {
                "server_name": "server",
                "ca_file": "server_ca",
                "cert_file": "health_cert",
                "key_file": "health_key",
            },
        ),
    ],
)
def test_prometheus_is_let_in_with_the_secrets_of_the_stack(given: list[str], more: dict[str, str]) -> None:
    prometheus = services({f"POLYHEAD_{name}": "./a-file" for name in given})["prometheus"]
    path = prometheus["command"][0].removeprefix("--config.file=/etc/")
    config, plain = load(path), load("prometheus/prometheus.yml")
    (job,) = config["scrape_configs"]

    secrets = {key: value.removeprefix("/run/secrets/") for key, value in job.pop("tls_config", {}).items()}
    assert secrets == more
    assert job.pop("scheme", "http") == ("https" if given else "http")
    files = {value for key, value in secrets.items() if key.endswith("_file")}
    assert files | {"token"} <= set(prometheus["secrets"])
    assert job["authorization"] == {"credentials_file": "/run/secrets/token"}
    assert config == plain, "they differ in nothing else"


def test_the_page_scrapes_as_the_stack_does() -> None:
    yaml: Any = importlib.import_module("yaml")
    (job,) = yaml.safe_load(block("docs/operations.md", "scrape_configs"))["scrape_configs"]
    (ours,) = load("prometheus/prometheus-tls-mutual.yml")["scrape_configs"]

    assert job["job_name"] == ours["job_name"]
    assert job.keys() - {"static_configs"} <= ours.keys()
    assert job["tls_config"].keys() <= ours["tls_config"].keys()


def test_the_stack_is_wired_together() -> None:
    (source,) = load("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    (provider,) = load("grafana/provisioning/dashboards/polyhead.yml")["providers"]
    (job,) = load("prometheus/prometheus.yml")["scrape_configs"]
    (names,) = job["dns_sd_configs"]
    grafana = services()["grafana"]

    assert {target["datasource"]["uid"] for target in TARGETS} == {"${datasource}"}
    asked = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert asked["datasource"]["query"] == source["type"]
    # Of targets that have no namespace, too; and of no other target than polyhead's.
    assert asked["namespace"]["allValue"] == ".*"
    assert "allValue" not in asked["instance"]
    assert all('instance=~"$instance"' in query for target in TARGETS for query in [target["expr"]])
    assert source["url"] == "http://prometheus:9090"
    assert any(volume.split(":")[1] == provider["options"]["path"] for volume in grafana["volumes"])
    assert set(names["names"]) <= set(services())
    assert names["port"] == 8002
    assert any(rule["expr"].startswith("up == 0 and on (job, instance)") for rule in RULES), "one may be down"
    assert {rule["alert"] for rule in RULES} == {
        rule["alert"] for rule in RULES if rule["annotations"]["summary"]
    }
