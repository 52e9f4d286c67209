"""The compose stack, built and run for real: `make test-compose`.

The tests run in this order, on one stack that each leaves as it was. What they measured is in
build/compose/report.json.
"""

import asyncio
import json
import math
import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import grpc
import numpy as np
import psutil
import pytest
import trustme
from tests.deploy.compose_file import ROOT, services
from tests.deploy.kubernetes_objects import KUBECTL, OWN, pod
from tests.deploy.stack import Stack, can_be_had, run, volumes
from tests.deploy.traffic import TEXTS, Persistent, call_until_refused

from benchmarks.hostile import LARGE, attack
from polyhead_client import AccessDenied, AsyncClient, Client, PolyheadError

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("POLYHEAD_TEST_COMPOSE") != "1",
        reason="make test-compose runs it, on a container engine",
    ),
    # The first of them also waits for the builds.
    pytest.mark.timeout(1800),
]

OUT = ROOT / "build" / "compose"
TAG = f"test-{os.getpid()}"
OURS = ("server", "export", "load", "explorer", "proxy")
MEGABYTE = 1e6


class Report:
    """What was measured."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def __call__(self, name: str, value: Any) -> None:
        """Notes a value; the last one is in the file even when a test fails."""
        self.values[name] = round(value, 2) if isinstance(value, float) else value
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "report.json").write_text(json.dumps(self.values, indent=2) + "\n")


@pytest.fixture(scope="module")
def report() -> Report:
    return Report()


@pytest.fixture(scope="module")
def prometheus() -> Iterator[str]:
    """Prometheus' image, or a stand-in."""
    image: Any = re.search(r"prom/prometheus:v[\d.]+", (ROOT / "docker-compose.yml").read_text())
    if can_be_had(image[0]):
        yield image[0]
        return
    stand_in = f"polyhead-prometheus:{TAG}"
    recipe = ROOT / "tests" / "deploy" / "prometheus.Dockerfile"
    arguments = ["--build-arg", f"BASE_IMAGE={os.environ.get('BASE_IMAGE', 'python:3.11-slim')}"]
    run("docker", "build", "--quiet", "--tag", stand_in, "--file", recipe, *arguments, recipe.parent)
    yield stand_in
    run("docker", "image", "rm", "--force", stand_in)


@pytest.fixture(scope="module")
def images(report: Report) -> Iterator[None]:
    """Our images, built; removed in the end."""
    builder = Stack("polyhead-build", tag=TAG)
    started = time.monotonic()
    builder("build", "server", "proxy", "export", "locust", "explorer", timeout=900)
    report("build, seconds", time.monotonic() - started)
    yield
    run("docker", "image", "rm", "--force", *(f"polyhead-{name}:{TAG}" for name in OURS))


@pytest.fixture(scope="module")
def stack(images: None, prometheus: str, report: Report) -> Iterator[Stack]:
    """The stack, up and healthy; gone in the end, with all that was its own."""
    before = volumes()
    stack = Stack(f"polyhead-{TAG}", tag=TAG, PROMETHEUS_IMAGE=prometheus)
    report("prometheus", prometheus)
    try:
        started = time.monotonic()
        # An empty setting is one that is not made.
        stack("up", "--detach", settings={"POLYHEAD_SERVE_WORKERS": "", "POLYHEAD_TOKEN_FILE": ""})
        stack.until_healthy()
        stack.until_healthy("proxy")
        report("cold up to healthy, seconds", time.monotonic() - started)
        stack("up", "--detach", "prometheus")
        stack.until_healthy("prometheus")
        yield stack
    finally:
        stack("--profile", "*", "down", "--volumes", "--timeout", "10")
        left, strays = stack.left(), volumes() - before
    assert left == []
    assert strays == set()


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.address, timeout=60) as client:
        client.wait_until_ready(timeout=600)
        yield client


def test_the_file_is_clean(stack: Stack) -> None:
    assert stack("--profile", "*", "config", "--quiet") == ""


def test_images_are_small_and_not_root(images: None, report: Report) -> None:
    for name in OURS:
        (image,) = json.loads(run("docker", "image", "inspect", f"polyhead-{name}:{TAG}"))
        size = _size(f"polyhead-{name}:{TAG}")
        report(f"image {name}, MB", size / MEGABYTE)
        assert image["Config"]["User"] == "10001:10001"
        if name == "server":
            assert size <= 700 * MEGABYTE


def test_the_export_does_nothing_when_all_is_there(stack: Stack, report: Report) -> None:
    started = time.monotonic()
    said = stack("run", "--rm", "export")
    report("export with nothing to do, seconds", time.monotonic() - started)

    for family in ("minilm", "teaching-h1", "teaching-h2", "teaching-h4", "teaching-h8"):
        assert f"{family} is there already" in said


def test_the_client_calls_it_from_outside(stack: Stack, client: Client) -> None:
    result: Any = client.encode(
        [*TEXTS, "Share prices dropped."], model="minilm", attention=[5], heads=[0, 3]
    )

    similar = result.pooled @ result.pooled.T
    assert similar[0, 1] > similar[0, 2]
    assert result.attention[5][0].shape[0] == 2
    for heads in (1, 2, 4, 8):
        weights: Any = client.encode(
            np.ones((3, 256), np.float32), model=f"teaching-h{heads}", attention=[0]
        ).attention
        assert weights[0].shape == (heads, 3, 3)
    said = run(
        Path(sys.executable).with_name("polyhead"),
        *("infer", TEXTS[0], "--model", "minilm", "--attention", "5", "--address", stack.address),
    )
    assert "eating" in said


def test_32_hostile_connections_cost_the_server_nothing(stack: Stack, report: Report) -> None:
    async def run_attack() -> None:
        async with AsyncClient(stack.address, timeout=120) as client:

            async def honest() -> None:
                await client.encode(TEXTS, model="minilm")

            await honest()
            # The server in its container, which docker's init has started.
            (process,) = psutil.Process(stack.container("server")["State"]["Pid"]).children()
            outcome = await attack(stack.address, honest, process, connections=32, bomb=LARGE)
        report("longest call beside 32 hostile connections, seconds", outcome.longest_seconds)
        assert outcome.failed == []
        assert outcome.honest_calls > 1
        assert outcome.hostile_calls > 32
        assert outcome.grown_mib <= 50

    asyncio.run(run_attack())


def test_locust_without_its_web_interface(stack: Stack, report: Report) -> None:
    requests = _load(stack, seconds=10)

    assert requests > 0
    report("locust without its web interface, requests/s", requests / 10)


def test_locust_with_workers(stack: Stack) -> None:
    stack("up", "--detach", "--no-deps", "--scale", "locust-worker=2", "locust", "locust-worker")
    stack.until_healthy("locust")

    def stats() -> dict[str, Any]:
        return dict(json.loads(stack.get("locust", "/stats/requests")))

    _until(lambda: len(stats()["workers"]) == 2)
    stack.get("locust", "/swarm", {"user_count": "4", "spawn_rate": "4", "host": "server:8001"})
    _until(lambda: stats()["stats"][-1]["num_requests"] > 100)
    assert stats()["fail_ratio"] == 0
    stack.get("locust", "/stop", {})
    stack("rm", "--stop", "--force", "locust", "locust-worker")


def test_the_explorer_shows_what_the_server_serves(stack: Stack) -> None:
    stack("up", "--detach", "--no-deps", "explorer")
    stack.until_healthy("explorer")

    families = {one["name"]: one for one in json.loads(stack.get("explorer", "/api/server"))["families"]}
    assert families["minilm"]["heads"] == 12
    assert (families["teaching-h4"]["heads"], families["teaching-h4"]["text"]) == (4, False)
    stack("rm", "--stop", "--force", "explorer")


def test_prometheus_has_it_all(stack: Stack, client: Client) -> None:
    expressions = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    (drops,) = (expression for expression in expressions if "polyhead_drops_total" in expression)
    x = {"name": "x", "datatype": "FP32", "shape": [1, 2, 256], "data": [0.0] * 512}

    def dropped() -> bool:
        for seconds in ("0.0005", "0.001", "0.002", "0.004"):  # one of them ends while the work is queued
            late = {"Content-Type": "application/json", "X-Request-Timeout": seconds}
            try:
                stack.http("polyhead_http", "/v2/models/teaching-h8/infer", json.dumps({"inputs": [x]}), late)
            except HTTPError as error:
                error.close()
        return any(float(one["value"][1]) > 0 for one in stack.ask(fill_in(drops, seconds=120)))

    with Persistent(stack.address).calling() as callers:
        callers.wait_for_answers(1)
        _until(dropped)
        _until(lambda: not _without_a_value(stack, expressions))
    assert callers.failed == []
    assert {one["metric"]["reason"] for one in stack.ask(fill_in(drops, seconds=120))}

    (up,) = stack.ask('up{job="polyhead"}')
    assert up["metric"]["instance"] == "server"
    assert up["value"][1] == "1"
    (scraped,) = stack.ask('sum(polyhead_requests_total{code="OK"})')
    answered = sum(each.durations["success"].count for each in client.statistics())
    assert 0 < float(scraped["value"][1]) <= answered
    rules = json.loads(stack.get("prometheus", "/api/v1/rules"))["data"]["groups"][0]["rules"]
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
    firing = json.loads(stack.get("prometheus", "/api/v1/alerts"))["data"]["alerts"]
    assert [alert["labels"]["alertname"] for alert in firing if alert["state"] == "firing"] == []
    said = stack(
        "exec", "--no-TTY", "prometheus", "promtool", "check", "config", "/etc/prometheus/prometheus.yml"
    )
    assert "SUCCESS" in said


def test_grafana_shows_it(stack: Stack) -> None:
    image = services()["grafana"]["image"]
    if not can_be_had(image):
        pytest.skip(f"{image} is not available here")
    stack("up", "--detach", "grafana", settings={"GRAFANA_IMAGE": image})
    stack.until_healthy("grafana")

    shown = json.loads(stack.get("grafana", "/api/dashboards/uid/polyhead"))["dashboard"]
    assert [panel["title"] for panel in shown["panels"]] == [
        panel["title"] for panel in dashboard()["panels"]
    ]
    (target, *_) = (target for panel in shown["panels"] for target in panel.get("targets", []))
    query = {"refId": "A", "datasource": target["datasource"], "instant": True}
    query["expr"] = fill_in(target["expr"], seconds=120)
    answer = stack.post("grafana", "/api/ds/query", {"queries": [query], "from": "now-5m", "to": "now"})
    *_, values = answer["results"]["A"]["frames"][0]["data"]["values"]
    assert values[0] > 0


def test_a_killed_server_comes_back(stack: Stack, report: Report) -> None:
    stack("up", "--detach", "--no-deps", "server")
    stack.until_healthy()
    with Persistent(stack.address, patient=True).calling() as callers:
        callers.wait_for_answers(20)
        started = time.monotonic()
        _kill(stack)
        callers.wait_for_answers(40)
        report("killed server to answers again, seconds", time.monotonic() - started)
        stack.until_healthy()

    assert callers.failed == [], "a patient client calls until it is back"
    assert stack.container("server")["RestartCount"] == 1


@pytest.mark.parametrize("stopped", ["server", "proxy"])
def test_a_stop_under_load_loses_no_accepted_request(stack: Stack, report: Report, stopped: str) -> None:
    # Which writes a line for every request.
    debug = {"POLYHEAD_SERVE_LOG_LEVEL": "debug"}
    stack("up", "--detach", "--no-deps", "--force-recreate", "server", settings=debug)
    stack.until_healthy()
    replies: list[int] = []
    callers = call_until_refused(stack.address, replies)
    callers.wait_for_answers(20)
    started = time.monotonic()
    stack("stop", stopped)
    report(f"stop of the {stopped} under load, seconds", time.monotonic() - started)
    callers.wait_until_ended()
    state = stack.container(stopped)["State"]
    log = stack("logs", "server")

    assert (state["Status"], state["ExitCode"]) == ("exited", 0)
    if stopped == "server":
        assert re.search(r"draining: \d+ requests to finish", log)
        assert log.rstrip().endswith("stopped")
    assert len(re.findall(r" request \S+ teaching-h4 OK ", log)) == len(replies)
    # Refused by the server, by the proxy when that is gone, or not even connected; a lost one would
    # say that its connection ended.
    assert len(callers.errors) == 4
    for error in callers.errors:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert re.search("draining|status: 503|failed to connect", error.details()), error.details()
    stack("up", "--detach", "--no-deps", "server", "proxy")
    stack.until_healthy()
    stack.until_healthy("proxy")


def test_a_wrong_token_and_tls(stack: Stack, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued, caller = authority.issue_cert("encoders.test"), authority.issue_cert("caller")
    files = {name: tmp_path / name for name in ("cert", "key", "ca", "token")}
    issued.private_key_pem.write_to_path(files["key"])
    issued.cert_chain_pems[0].write_to_path(files["cert"])
    authority.cert_pem.write_to_path(files["ca"])
    files["token"].write_text("a-token-that-is-long-enough\n")
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    for path in files.values():
        path.chmod(0o644)
    settings = {
        "POLYHEAD_TOKEN_FILE": str(files["token"]),
        "POLYHEAD_TLS_CERT": str(files["cert"]),
        "POLYHEAD_TLS_KEY": str(files["key"]),
        "POLYHEAD_TLS_CLIENT_CA": str(files["ca"]),
    }
    stack("up", "--detach", "--no-deps", "server", "proxy", settings=settings)
    stack.until_healthy()
    stack.until_healthy("proxy")
    pair = (caller.private_key_pem.bytes(), caller.cert_chain_pems[0].bytes())
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), *pair)
    name = (("grpc.ssl_target_name_override", "encoders.test"),)
    try:
        for token, error in (("a-token-that-is-long-enough", None), ("another-token-as-long", AccessDenied)):
            with Client(stack.address, credentials=credentials, token=token, options=name) as client:
                if error is None:
                    assert client.encode(TEXTS, model="minilm").pooled is not None
                else:
                    with pytest.raises(error):
                        client.encode(TEXTS, model="minilm")
        # Without TLS, and without a certificate of its own.
        no_retries = (*name, ("grpc.enable_retries", 0))
        for shown in (None, grpc.ssl_channel_credentials(authority.cert_pem.bytes())):
            with (
                Client(stack.address, credentials=shown, timeout=5, options=no_retries) as client,
                pytest.raises(PolyheadError),
            ):
                client.encode(TEXTS, model="minilm")
        assert _load(stack, seconds=5, settings=settings) > 0
        up, now = 'up{job="polyhead"}', time.time()
        stack("up", "--detach", "--no-deps", "prometheus", settings=settings)
        stack.until_healthy("prometheus")
        _until(lambda: stack.ask(f"{up} == 1 and timestamp({up}) > {now}"))
    finally:
        stack("up", "--detach", "--no-deps", "server", "proxy", "prometheus")
        for service in ("server", "proxy", "prometheus"):
            stack.until_healthy(service)


@pytest.mark.skipif(KUBECTL is None, reason="kubectl, which has kustomize, is not installed")
@pytest.mark.parametrize("target", ["overlays/try", OWN])
def test_a_pod_runs_with_what_its_manifest_gives_it(images: None, target: str) -> None:
    """The containers of an overlay of deploy/kubernetes, on this engine."""
    spec, of_models = pod(target), pod("overlays/try")
    (export,), (server,) = of_models["initContainers"], spec["containers"]
    sidecars = [one for one in spec["initContainers"] if one.get("restartPolicy") == "Always"]
    name = f"polyhead-pod-{TAG}"
    names = [name, *(f"{name}-{sidecar['name']}" for sidecar in sidecars)]
    try:
        run(*_as_container(export, of_models, volume=name))
        run(*_as_container(server, spec, volume=name, more=("--detach", "--name", name, "--publish-all")))
        for sidecar, its_name in zip(sidecars, names[1:], strict=True):
            options = ("--detach", "--name", its_name, f"--network=container:{name}")
            run(*_as_container(sidecar, spec, volume=name, more=options))
        (state,) = json.loads(run("docker", "inspect", name))
        published = {
            int(port.partition("/")[0]): f"127.0.0.1:{bound[0]['HostPort']}"
            for port, bound in state["NetworkSettings"]["Ports"].items()
        }
        startup, live = server["startupProbe"], server["livenessProbe"]
        with Client(published[startup["grpc"]["port"]], timeout=60) as client:
            client.wait_until_ready(timeout=startup["periodSeconds"] * startup["failureThreshold"])
            assert client.encode(TEXTS, model="minilm").pooled is not None
        if target == OWN:
            run("docker", "exec", name, *live["exec"]["command"])
        else:
            _get(published[live["httpGet"]["port"]], live["httpGet"]["path"])
            _get(published[8002], "/v2/models/minilm/ready")
        _get(published[8002], "/metrics")
        for one in names:
            run("docker", "stop", "--time", str(spec["terminationGracePeriodSeconds"]), one)
            (state,) = json.loads(run("docker", "inspect", one))
            assert state["State"]["ExitCode"] == 0
    finally:
        run("docker", "rm", "--force", *reversed(names), check=False)
        run("docker", "volume", "rm", "--force", name)


def test_down_keeps_the_models_and_nothing_that_runs(stack: Stack) -> None:
    stack("--profile", "*", "down")

    assert stack.left() == []
    kept = {name.removeprefix(f"{stack.name}_") for name in volumes() if name.startswith(stack.name)}
    assert kept - {"grafana"} == {"models", "prometheus"}
    with Client(stack.address, timeout=5) as client:
        assert not client.live()

    # And up again, which finds them.
    stack("up", "--detach")
    stack.until_healthy()
    stack.until_healthy("proxy")


def _size(image: str) -> int:
    """What an image's files take, in bytes: what the engine says depends on how it stores them."""
    return int(
        run("docker", "run", "--rm", "--user", "0", "--entrypoint", "du", image, "-sxb", "/").split()[0]
    )


def _as_container(
    container: dict[str, Any], spec: dict[str, Any], *, volume: str, more: Sequence[str] = ()
) -> list[str]:
    """`docker run` with what a pod's spec gives a container; `volume` is the pod's volume of models."""
    security = spec["securityContext"] | container["securityContext"]
    limits = container["resources"]["limits"]
    mounts = {
        "models": ("--mount", f"type=volume,source={volume},destination="),
        "tmp": ("--tmpfs", ""),
    }
    words = ["docker", "run", *more, f"--user={security['runAsUser']}:{security['runAsGroup']}"]
    words += ["--read-only"] * security["readOnlyRootFilesystem"]
    words += [f"--cap-drop={name}" for name in security["capabilities"]["drop"]]
    words += [] if security["allowPrivilegeEscalation"] else ["--security-opt=no-new-privileges"]
    words += [f"--memory={limits['memory'].lower().removesuffix('i')}", f"--cpus={limits.get('cpu', 2)}"]
    words += [f"--env={one['name']}={one['value']}" for one in container.get("env", ())]
    for mount in container.get("volumeMounts", ()):
        flag, value = mounts[mount["name"]]
        words += [flag, value + mount["mountPath"] + ",readonly" * mount.get("readOnly", False)]
    image = container["image"].rpartition("/")[2].partition(":")[0]
    return [*words, *(() if more else ("--rm",)), f"{image}:{TAG}", *container.get("args", ())]


def _get(address: str, path: str) -> None:
    """Has a server answer over HTTP."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=120) as reply:
        assert reply.status == 200


def _load(stack: Stack, *, seconds: int, settings: Mapping[str, str] | None = None) -> int:
    """Runs locust without its web interface; how many requests there were, none of which failed."""
    arguments = ["--headless", "--users", "4", "--spawn-rate", "4", "--run-time", f"{seconds}s", "--json"]
    # Not the log, lines of which may come amid the statistics: that is on standard error.
    stats = json.loads(
        stack("run", "--rm", "--no-deps", "locust", *arguments, stderr=None, settings=settings)
    )
    assert {one["num_failures"] for one in stats} == {0}
    return sum(one["num_requests"] for one in stats)


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana reads it."""
    path = ROOT / "deploy" / "grafana" / "dashboards" / "polyhead.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def fill_in(expression: str, *, seconds: int) -> str:
    """The query with the values that Grafana would put in."""
    for name, value in (
        ("$__rate_interval", "30s"),
        ("$__range", f"{seconds}s"),
        ("$model", ".*"),
        ("$instance", ".*"),
    ):
        expression = expression.replace(name, value)
    return expression


def _without_a_value(stack: Stack, expressions: list[str]) -> list[str]:
    """Those of the dashboard's expressions of which Prometheus has no finite value now."""

    def has_one(expression: str) -> bool:
        found = stack.ask(fill_in(expression, seconds=120))
        return any(math.isfinite(float(one["value"][1])) for one in found)

    return [expression for expression in expressions if not has_one(expression)]


def _until(holds: Any, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def _kill(stack: Stack) -> None:
    """Kills the server in its container: the container itself must not be what is stopped by hand."""
    find = "import os, signal; os.kill(int(open('/proc/1/task/1/children').read()), signal.SIGKILL)"
    stack("exec", "--no-TTY", "server", "python", "-c", find, check=False)
