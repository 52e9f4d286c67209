"""What deploy/kubernetes promises: objects that fit their schemas, each other, and the server."""

import copy
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.deploy.compose_file import ROOT
from tests.deploy.kubernetes_objects import (
    FOLDER,
    KUBECTL,
    MODELS,
    OWN,
    TARGETS,
    copy_with_own,
    kustomize,
    of_kind,
    pod,
    render,
    server,
)
from tests.deploy.proxy import CONFIGURATION
from tests.deploy.stack import run
from tests.interop.test_kserve import ENVIRONMENT as KSERVE
from tests.servers import InThread, quick_settings, serving, serving_metrics

from polyhead_server import Settings
from polyhead_server.command import app
from polyhead_server.http.listener import DEFAULT_PORT
from polyhead_server.repository.manifest import FORMAT

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl, which has kustomize, is not installed")

PLAIN = [target for target in TARGETS if target != "kserve"]
VERSIONS = ("1.30", "1.37")
"""The oldest Kubernetes that has all that is used, and the newest whose schemas are installed."""

CORE = {"Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget", "Service"}
OF_MODELS = {"Job", "PersistentVolumeClaim"}
OF_KSERVE = {"InferenceService", "ServingRuntime"}


def every(kinds: set[str]) -> list[dict[str, Any]]:
    """All objects of these kinds."""
    return [one for target in (*TARGETS, MODELS) for one in render(target) if one["kind"] in kinds]


def labels(owner: dict[str, Any]) -> dict[str, str]:
    """What an object selects."""
    selector: dict[str, Any] = owner["spec"].get("selector") or owner["spec"]["podSelector"]
    found: dict[str, str] = selector.get("matchLabels", selector)
    return found


def settings(target: str) -> Settings:
    """What the server makes of the container's arguments, with its own command line."""
    _, bound, _ = app.parse_args(server(target)["args"], exit_on_error=False, print_error=False)
    found: Settings = bound.arguments["settings"]
    return found


@pytest.fixture(autouse=True)
def _no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POLYHEAD_SERVE_")]:
        monkeypatch.delenv(name)


# ---- Schemas --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_core_objects_fit_their_schemas(version: str) -> None:
    validate: Any = importlib.import_module("kubernetes_validate")
    objects = every(CORE | OF_MODELS)
    for one in objects:
        validate.validate(one, version, strict=True)

    misspelt = copy.deepcopy(of_kind("overlays/cpu", "Deployment"))
    misspelt["spec"]["replica"] = 2
    with pytest.raises(validate.ValidationError, match="replica"):
        validate.validate(misspelt, version, strict=True)


def check(command: list[str | Path], objects: list[dict[str, Any]]) -> str:
    """What a script says about objects."""
    done = subprocess.run(command, input=json.dumps(objects), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_resources_of_kserve_fit_their_models() -> None:
    python = KSERVE / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment with kserve at {KSERVE}")
    wrong = copy.deepcopy(every(OF_KSERVE))
    for one in wrong:
        if one["kind"] == "ServingRuntime":
            one["spec"] |= {"replica": 2, "protocolVersions": "grpc-v2"}
        else:
            one["spec"]["predictor"]["model"]["storageURI"] = "pvc://other"
    said = check([python, Path(__file__).with_name("kserve_resources.py")], [*every(OF_KSERVE), *wrong])

    assert set(said.splitlines()) == {
        "ServingRuntime.spec.replica is no key of V1alpha1ServingRuntimeSpec",
        "ServingRuntime.spec.protocolVersions must be list[str], was 'grpc-v2'",
        "InferenceService.spec.predictor.model.storageURI is no key of V1beta1ModelSpec",
    }


# ---- Objects and the server -----------------------------------------------------------------------------


@pytest.mark.parametrize("target", PLAIN)
def test_objects_select_the_pods(target: str) -> None:
    deployment = of_kind(target, "Deployment")
    of_pods: dict[str, str] = deployment["spec"]["template"]["metadata"]["labels"]
    (spread,) = pod(target)["topologySpreadConstraints"]

    for kind in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"):
        assert labels(of_kind(target, kind)).items() <= of_pods.items(), kind
    assert spread["labelSelector"]["matchLabels"].items() <= of_pods.items()
    for one in render(target):
        if one["kind"] == "HorizontalPodAutoscaler":
            assert one["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert len({one["metadata"]["namespace"] for one in render(target)}) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_arguments_are_flags_of_the_server(target: str) -> None:
    served = settings(target)
    mounts = {mount["mountPath"]: mount for mount in server(target)["volumeMounts"]}

    assert "/tmp" in mounts, "the only place that it writes to"
    if target == "kserve":
        # Where KServe puts the storage URI.
        assert served.models == Path("/mnt/models")
    else:
        assert mounts[str(served.models)]["readOnly"] is True
    assert served.max_request_seconds * 1000 <= 300_000
    assert "grpc.max_connection_age_grace_ms=300000" in served.grpc_option


@pytest.mark.parametrize("target", TARGETS)
def test_ports_are_those_of_the_server(target: str) -> None:
    served, container = settings(target), server(target)
    ports = {"grpc": Settings.port, "http": DEFAULT_PORT}

    for name in ("startupProbe", "readinessProbe"):
        assert container[name]["grpc"]["port"] == ports["grpc"]
    if target == OWN:
        # The proxy's; behind it, the server listens where only the pod reaches it.
        assert (served.host, served.http_host) == ("127.0.0.1", "127.0.0.1")
        assert {served.port, served.http_port}.isdisjoint(ports.values())
        assert f"127.0.0.1:{served.http_port}/healthz" in container["livenessProbe"]["exec"]["command"][-1]
    else:
        assert {"grpc": served.port, "http": served.http_port} == ports
        assert container["livenessProbe"]["httpGet"]["port"] == ports["http"]
    if target == "kserve":
        # One port, whose name makes KServe route HTTP/2 to it.
        assert container["ports"] == [{"name": "grpc", "containerPort": ports["grpc"], "protocol": "TCP"}]
        annotations = of_kind(target, "ServingRuntime")["spec"]["annotations"]
        assert annotations["prometheus.kserve.io/port"] == str(ports["http"])
        return
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    service = of_kind(target, "Service")["spec"]
    assert service["clusterIP"] == "None"
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    allowed = [
        port["port"] for rule in of_kind(target, "NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]
    ]
    assert allowed == list(ports)
    if target == OWN:
        monitor = of_kind(target, "PodMonitor")["spec"]
        deployment = of_kind(target, "Deployment")["spec"]["template"]["metadata"]
        assert [one["port"] for one in monitor["podMetricsEndpoints"]] == ["http"]
        assert monitor["selector"]["matchLabels"].items() <= deployment["labels"].items()
        assert "annotations" not in deployment, "all would count twice"
        return
    annotations = of_kind(target, "Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["http"])


def test_the_proxy_is_a_sidecar_that_finds_the_server() -> None:
    (proxy,) = pod(OWN)["initContainers"]
    served = settings(OWN)
    listening = re.findall(r"_BIND-:(\d+)", CONFIGURATION.read_text())

    assert proxy["restartPolicy"] == "Always"
    assert {one["name"]: one["value"] for one in proxy["env"]} == {
        "POLYHEAD_PROXY_GRPC_SERVER": f"{served.host}:{served.port}",
        "POLYHEAD_PROXY_HTTP_SERVER": f"{served.http_host}:{served.http_port}",
    }
    assert [str(port["containerPort"]) for port in server(OWN)["ports"]] == listening


def test_http_is_for_inference_where_its_component_is() -> None:
    for target in PLAIN:
        rules = of_kind(target, "NetworkPolicy")["spec"]["ingress"]
        (callers,) = (rule["from"] for rule in rules if rule["ports"] == [{"port": "http"}])
        assert callers[0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
        assert callers[1:] == [{"podSelector": {}}] * settings(target).http
    assert [target for target in TARGETS if settings(target).http] == ["overlays/try"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_pod_has_time_to_drain(target: str) -> None:
    waits = server(target)["lifecycle"]["preStop"]["sleep"]["seconds"]

    assert waits >= 5, "until its address is gone everywhere"
    # What the documentation of stopping allows on top, and as much again.
    assert pod(target)["terminationGracePeriodSeconds"] >= waits + settings(target).drain_seconds + 2 * 2


@pytest.fixture(scope="module")
def small(repository: Path) -> Iterator[InThread]:
    with serving(quick_settings(repository)) as one:
        yield one


@pytest.mark.parametrize("target", TARGETS)
def test_a_server_answers_the_probes(target: str, small: InThread) -> None:
    container = server(target)
    served = small.server.runtime.settings

    with grpc.insecure_channel(small.address) as channel:
        for name in ("startupProbe", "readinessProbe"):
            request = health_pb2.HealthCheckRequest(service=container[name]["grpc"].get("service", ""))
            reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
    with serving_metrics(Settings(models=served.models, http_port=0)) as port:
        if target == OWN:
            script = container["livenessProbe"]["exec"]["command"][-1]
            run(sys.executable, "-c", script.replace(f":{settings(target).http_port}", f":{port}"))
            return
        url = f"http://127.0.0.1:{port}{container['livenessProbe']['httpGet']['path']}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("target", TARGETS)
def test_containers_have_nothing_that_they_do_not_need(target: str) -> None:
    spec = pod(target)
    assert spec["enableServiceLinks"] is False
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        # A container's own settings win over the pod's.
        security = spec.get("securityContext", {}) | container["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["runAsGroup"] == 10001, "of the images"
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
    limits = server(target)["resources"]["limits"]
    requests = server(target)["resources"]["requests"]
    assert requests == {name: limits[name] for name in ("cpu", "memory")}
    if target != "kserve":
        assert spec["automountServiceAccountToken"] is False
        assert of_kind(target, "NetworkPolicy")["spec"]["egress"] == []


def test_images_are_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = {target: server(target)["image"] for target in TARGETS}
    (export,) = (container["image"] for container in pod("overlays/try")["initContainers"])

    assert images.pop("overlays/gpu") == f"polyhead-server-gpu:{version}"
    assert images.pop(OWN) == f"registry.example.com/polyhead-server:{version}"
    assert pod(OWN)["initContainers"][0]["image"] == f"registry.example.com/polyhead-proxy:{version}"
    (job,) = of_kind(MODELS, "Job")["spec"]["template"]["spec"]["containers"]
    assert job["image"] == f"polyhead-export:{version}"
    assert set(images.values()) == {f"polyhead-server:{version}"}
    assert export == f"polyhead-export:{version}"
    assert server("overlays/gpu")["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_components_go_together(tmp_path: Path) -> None:
    folder = copy_with_own(tmp_path)
    file = folder / OWN / "kustomization.yaml"
    components = ", ".join(f"../../components/{one.name}" for one in (folder / "components").iterdir())
    file.write_text(re.sub(r"components: \[.*\]", f"components: [{components}]", file.read_text()))

    done = kustomize(file.parent)

    assert done.returncode == 0, done.stderr
    images = {
        image.partition(":")[0].rpartition("/")[2] for image in re.findall(r"image: (\S+)", done.stdout)
    }
    assert images == {"polyhead-server-gpu", "polyhead-proxy", "polyhead-export"}
    assert "- --http\n" in done.stdout


@pytest.mark.parametrize("target", [*(target for target in PLAIN if target != OWN), MODELS])
def test_lines_to_change_are_in_one_file(target: str, tmp_path: Path) -> None:
    """And one of these, the name of each image, is enough: nothing else needs a registry."""
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    file = tmp_path / "kubernetes" / target / "kustomization.yaml"
    text = file.read_text()
    assert "# yours" in text
    file.write_text(text.replace("newName: polyhead", "newName: registry.example.com/polyhead"))

    done = kustomize(file.parent)

    assert done.returncode == 0, done.stderr
    images = re.findall(r"image: (\S+)", done.stdout)
    assert images
    assert all(image.startswith("registry.example.com/polyhead-") for image in images)
    assert {one["kind"] for one in render(target)} <= CORE | OF_MODELS


def test_a_job_fills_the_claim() -> None:
    job = of_kind(MODELS, "Job")["spec"]["template"]
    (container,) = job["spec"]["containers"]
    volumes = {volume["name"]: volume for volume in job["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}

    # deploy/export.sh writes there, as the user of the pods that read it; and nothing takes it for a server.
    claimed = volumes[mounts["/models"]]["persistentVolumeClaim"]
    assert claimed == {"claimName": of_kind(MODELS, "PersistentVolumeClaim")["metadata"]["name"]}
    assert job["spec"]["securityContext"] == pod("overlays/cpu")["securityContext"]
    assert container["securityContext"] == server("overlays/cpu")["securityContext"]
    assert not labels(of_kind("overlays/cpu", "Service")).items() <= job["metadata"]["labels"].items()


def test_models_come_from_the_claim_or_the_image() -> None:
    def models(target: str) -> dict[str, Any]:
        (found,) = (volume for volume in pod(target)["volumes"] if volume["name"] == "models")
        return dict(found)

    claim = of_kind(MODELS, "PersistentVolumeClaim")["metadata"]
    for target in ("overlays/cpu", "overlays/gpu", OWN):
        assert models(target)["persistentVolumeClaim"] == {"claimName": claim["name"], "readOnly": True}
        assert claim["namespace"] == of_kind(target, "Deployment")["metadata"]["namespace"]
    assert set(models("overlays/try")) == {"name", "emptyDir"}
    (container,) = pod("overlays/try")["initContainers"]
    assert {"name": "models", "mountPath": "/models"} in container["volumeMounts"]


def test_a_number_of_pods_is_either_given_or_an_autoscaler_s() -> None:
    for target in PLAIN:
        scaled = any(one["kind"] == "HorizontalPodAutoscaler" for one in render(target))
        assert ("replicas" in of_kind(target, "Deployment")["spec"]) is not scaled


# ---- KServe ---------------------------------------------------------------------------------------------


def test_kserve_finds_the_runtime_and_one_protocol() -> None:
    runtime, service = of_kind("kserve", "ServingRuntime"), of_kind("kserve", "InferenceService")
    model = service["spec"]["predictor"]["model"]
    (offered,) = runtime["spec"]["supportedModelFormats"]

    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"].items() <= offered.items()
    assert offered["version"] == str(FORMAT)
    assert runtime["spec"]["protocolVersions"] == [model["protocolVersion"]] == ["grpc-v2"]
    assert runtime["spec"]["containers"][0]["name"] == "kserve-container"
    assert service["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"


def test_kserve_is_given_the_same_server() -> None:
    """Its objects cannot be made from the base, and shall not fall behind it."""
    here, there = server("kserve"), server("overlays/cpu")
    for key in ("image", "resources", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle"):
        assert here[key] == there[key], key
    assert here["args"][1:] == there["args"][1:]
    ends = "terminationGracePeriodSeconds"
    assert pod("kserve")[ends] == pod("overlays/cpu")[ends]
