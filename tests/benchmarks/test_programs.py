"""Each program runs with tiny encoders, and writes its pages."""

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from benchmarks.encoders import TINY_ENCODERS, TINY_TEXTS, export_missing
from benchmarks.soak.requests import TINY_ENCODERS as SOAKED

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs run, with what they would export, each encoder exported once.

    They export the rest, the graphs that compute padding.
    """
    folder = tmp_path_factory.mktemp("programs")
    build = folder / "build"
    models, of_texts = build / "bench-models", build / "bench-models-texts" / TINY_TEXTS.name
    export_missing([*TINY_ENCODERS, TINY_TEXTS, SOAKED.abandoned, SOAKED.wide], models)
    export_missing([TINY_TEXTS], of_texts / "int8", precision="int8")
    for encoder in (*TINY_ENCODERS, TINY_TEXTS):
        copytree(models / encoder.name, build / "baseline-models" / encoder.name)
    copytree(models / TINY_TEXTS.name, of_texts / "fp32" / TINY_TEXTS.name)
    return folder


def start(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program in a folder."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )


def run(folder: Path, *arguments: str) -> None:
    done = start(folder, *arguments, "--tiny")
    assert done.returncode == 0, done.stdout + done.stderr


def page(folder: Path, name: str) -> tuple[str, dict[str, Any]]:
    out = folder / "build" / "bench"
    return (out / f"{name}.md").read_text(), json.loads((out / f"{name}.json").read_text())


def held(facts: dict[str, Any]) -> dict[str, bool]:
    return {one["name"]: one["holds"] for one in facts["conditions"]}


def test_bench(folder: Path) -> None:
    """Beside this checkout's own server as the baseline."""
    (folder / "other").symlink_to(ROOT)

    run(folder, "benchmarks.bench", "--baseline", "other")

    shown, facts = page(folder, "serving")
    assert held(facts)["every request was answered"]
    assert "BASELINE=PATH" in shown
    head = next(line for line in shown.splitlines() if line.startswith("| encoder |"))
    for column in ("× limit", "× floor", "× without attention", "× gRPC", "× baseline", "CPU × baseline"):
        assert f" {column} |" in head
    rows = [line for line in shown.splitlines() if line.startswith(("| 16/2", "| tiny"))]
    for traffic in (
        "Poisson arrivals",
        "mixed",
        "a stream",
        "lists of 8",
        "`POST /v1/embeddings`",
        "T = 256",
    ):
        assert any(traffic in row for row in rows), traffic


def test_calls(folder: Path) -> None:
    run(folder, "benchmarks.calls")

    shown, facts = page(folder, "calls")
    counts = {(each["request"], each["side"]): each for each in facts["counts"]}
    assert {request for request, side in counts if side == "client"} == {
        "a text, pooled",
        "a text, attention of a layer",
        "32 texts, pooled",
    }
    for (request, side), each in counts.items():
        entered = facts["entered"][f"{request}, {side}"]
        assert each["calls"] == sum(entered.values())
        assert each["calls"] >= each["functions"] >= each["files"] > 0
        assert not any("Lifecycle.sample" in name for name in entered)
    assert "| `POST /v1/embeddings` | server |" in shown
    assert len(facts["conditions"]) == 12


def test_compare(folder: Path) -> None:
    """Whoever has no environment here takes no part."""
    parts = ("peers", "natural", "engines", "int8")

    run(folder, "benchmarks.compare", "--parts", *parts)

    for part in parts:
        shown, facts = page(folder, part)
        assert f"make compare PARTS={part}" in shown
        assert facts["rankings" if part == "int8" else "comparisons"]
        assert all(
            sample["errors"] == 0
            for each in facts.get("comparisons", [])
            for samples in each["samples"].values()
            for sample in samples
        )


def test_soak(folder: Path) -> None:
    run(folder, "benchmarks.soak")

    shown, facts = page(folder, "soak")
    timed = (
        "connections, alone",  # what a proxy is for: docs/operations.md
        "delays a lone text",
        "the longest honest call",
        "files are flat",
        "threads are flat",
        "memory",
        "queue",
    )
    failed = [name for name, holds in held(facts).items() if not holds]
    assert [name for name in failed if not any(word in name for word in timed)] == []
    for heading in ("Mixed load", "Crowds", "The largest JSON", "Hostile connections"):
        assert f"## {heading}" in shown
