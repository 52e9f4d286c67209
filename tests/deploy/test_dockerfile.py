"""What the Dockerfile promises: stages, no root, versions, and no torch where it is not needed."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.deploy.compose_file import ROOT

OF_PYTHON = ("server", "server-gpu", "export", "load", "explorer")
TARGETS = (*OF_PYTHON, "proxy")
TEXT = (ROOT / "Dockerfile").read_text()


class Stage(NamedTuple):
    """One stage: what it starts from, and its instructions in order."""

    base: str
    instructions: list[tuple[str, str]]


def parse() -> dict[str, Stage]:
    """The stages by name."""
    lines = (line for line in TEXT.splitlines() if not line.startswith("#"))
    stages: dict[str, Stage] = {}
    stage = Stage("", [])
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        word, rest = line.split(None, 1)
        if word == "FROM":
            base, name = rest.split(" AS ")
            stage = stages[name] = Stage(base, [])
        else:
            stage.instructions.append((word, rest))
    return stages


STAGES = parse()


def history(target: str) -> list[tuple[str, str]]:
    """All instructions that make a target, those of the stages that it starts from first."""
    stage = STAGES[target]
    return (history(stage.base) if stage.base in STAGES else []) + stage.instructions


@pytest.mark.parametrize("target", TARGETS)
def test_images_do_not_run_as_root(target: str) -> None:
    users = [rest for word, rest in history(target) if word == "USER"]

    assert users[-1:] == ["10001:10001"]


@pytest.mark.parametrize("target", OF_PYTHON)
def test_images_take_packages_from_a_stage_of_their_own_and_no_more(target: str) -> None:
    copies = [rest for word, rest in history(target) if word == "COPY"]
    packages = [copy for copy in copies if copy.startswith("--from=")]

    exported = ("minilm", "teaching") if target == "export" else ()
    models = [f"--from=export-{name} /opt/models /opt/models" for name in exported]
    assert packages == [f"--from={target}-environment /opt/polyhead /opt/polyhead", *models]
    assert all("pip" not in rest for word, rest in history(target) if word == "RUN")


@pytest.mark.parametrize("target", TARGETS)
def test_images_say_what_they_are(target: str) -> None:
    labels = " ".join(rest for word, rest in history(target) if word == "LABEL")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in labels
    assert f"ARG VERSION={version}\n" in TEXT


@pytest.mark.parametrize("target", TARGETS)
def test_what_starts_gets_its_signals(target: str) -> None:
    entry = [rest for word, rest in history(target) if word == "ENTRYPOINT"]

    assert isinstance(json.loads(entry[-1]), list), "a shell in between would keep SIGTERM"


def test_what_serves_has_a_health_check() -> None:
    for target in ("server", "server-gpu", "proxy"):
        assert any(word == "HEALTHCHECK" for word, _ in history(target))


@pytest.mark.parametrize(
    ("target", "variable"),
    [
        ("server", "POLYHEAD_SERVE_HOST"),
        ("server", "POLYHEAD_SERVE_HTTP_HOST"),
        ("load", "LOCUST_WEB_HOST"),
        ("explorer", "POLYHEAD_EXPLORE_HOST"),
    ],
)
def test_what_a_container_serves_can_be_published(target: str, variable: str) -> None:
    """All of it listens on loopback by itself, which is the container's own."""
    settings = " ".join(rest for word, rest in history(target) if word == "ENV").split()

    assert f"{variable}=0.0.0.0" in settings


@pytest.mark.parametrize("target", OF_PYTHON)
def test_requirements_are_locked_and_light(target: str, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt", "constraints-cuda.txt"):
        shutil.copy(ROOT / name, tmp_path)
    subprocess.run([sys.executable, ROOT / "deploy" / "requirements.py"], cwd=tmp_path, check=True)
    folder = tmp_path / "requirements" / target
    first, *lines = (folder / "requirements.txt").read_text().splitlines()
    wanted = {re.split(r"[\[<>=; ]", line)[0].lower() for line in lines}
    locked = {line.split("==")[0].lower() for line in (folder / "constraints.txt").read_text().splitlines()}

    assert first == "--constraint constraints.txt"
    # The GPU image is x86-64: the marker of its other line, for other processors, does not hold there.
    needed = wanted - ({"onnxruntime"} if target == "server-gpu" else set())
    assert {name.replace("_", "-") for name in needed} <= {name.replace("_", "-") for name in locked}
    assert ("torch" in wanted) is (target == "export")
    assert ("onnxruntime-gpu" in wanted) is (target == "server-gpu")
    assert ("onnxruntime" in wanted) is (target in {"server", "server-gpu", "export"})
    assert ("locust" in wanted) is (target == "load")


def test_pip_always_reads_the_locked_requirements() -> None:
    for stage in STAGES.values():
        for word, rest in stage.instructions:
            if word == "RUN" and "pip install" in rest:
                words = shlex.split(rest)
                assert {"--requirement", "--no-index", "--constraint"} & set(words), rest


def test_files_that_are_copied_can_be_read_whatever_the_umask_of_a_checkout() -> None:
    for target in TARGETS:
        for word, rest in history(target):
            if word == "COPY" and not rest.startswith("--from="):
                assert rest.startswith("--chmod="), rest


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    files = [ROOT / "Dockerfile", ROOT / "tests" / "deploy" / "prometheus.Dockerfile"]
    done = subprocess.run([hadolint, *files], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
