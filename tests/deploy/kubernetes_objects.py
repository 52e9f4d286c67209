"""The objects of deploy/kubernetes, as kustomize renders them."""

import functools
import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.deploy.compose_file import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
TARGETS = ("overlays/try", "overlays/cpu", "overlays/gpu", "overlays/full", "kserve")
"""What there is to apply, of servers."""
MODELS = "models"
"""The claim that they serve, and what fills it."""

KUBECTL = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")


@functools.cache
def render(target: str) -> list[dict[str, Any]]:
    """The objects of a target."""
    done = kustomize(FOLDER / target)
    assert done.returncode == 0, done.stderr
    yaml: Any = importlib.import_module("yaml")
    return list(yaml.safe_load_all(done.stdout))


def kustomize(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Runs kustomize on a folder."""
    assert KUBECTL is not None
    return subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True, check=False)


def of_kind(target: str, kind: str) -> dict[str, Any]:
    """The only object of a kind."""
    (found,) = (one for one in render(target) if one["kind"] == kind)
    return found


def pod(target: str) -> dict[str, Any]:
    """The spec of a target's pods; KServe's controller joins it from two objects."""
    if target == "kserve":
        predictor = of_kind(target, "InferenceService")["spec"]["predictor"]
        runtime = of_kind(target, "ServingRuntime")["spec"]
        return dict(predictor | {"containers": runtime["containers"], "volumes": runtime["volumes"]})
    spec: dict[str, Any] = of_kind(target, "Deployment")["spec"]["template"]["spec"]
    return spec


def server(target: str) -> dict[str, Any]:
    """The server's container."""
    (container,) = pod(target)["containers"]
    return dict(container)
