"""The objects of deploy/kubernetes, as kustomize renders them."""

import functools
import importlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.deploy.compose_file import ROOT
from tests.pages import block

FOLDER = ROOT / "deploy" / "kubernetes"
OWN = "overlays/own"
"""What docs/deploy.md shows as an overlay of one's own: it has the components that no other overlay has."""
TARGETS = ("overlays/try", "overlays/cpu", "overlays/gpu", OWN, "kserve")
"""What there is to apply, of servers."""
MODELS = "models"
"""The claim that they serve, and what fills it."""

KUBECTL = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")


@functools.cache
def render(target: str) -> list[dict[str, Any]]:
    """The objects of a target."""
    with tempfile.TemporaryDirectory() as folder:
        done = kustomize(copy_with_own(Path(folder)) / target)
    assert done.returncode == 0, done.stderr
    yaml: Any = importlib.import_module("yaml")
    return list(yaml.safe_load_all(done.stdout))


def copy_with_own(folder: Path) -> Path:
    """Copies deploy/kubernetes into a folder, and adds `OWN`; where it is."""
    copy = shutil.copytree(FOLDER, folder / "kubernetes")
    (copy / OWN).mkdir()
    (copy / OWN / "kustomization.yaml").write_text(block("docs/deploy.md", "kind: Kustomization"))
    return copy


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
