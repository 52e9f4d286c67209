"""The command as it is started, on the CPU with tiny encoders."""

import json
from pathlib import Path

import pytest
import torch
from tests.benchmarks.test_programs import start


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, its head left out."""
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_fails(tmp_path: Path) -> None:
    done = start(tmp_path, "benchmarks.gpu_check", "--parts", "speed")

    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "nothing was measured" in said
    assert "sees no GPU" in said
    assert not list(tmp_path.rglob("*.md"))


def test_every_part_runs_on_the_cpu(tmp_path: Path) -> None:
    done = start(tmp_path, "benchmarks.gpu_check", "--device", "cpu", "--tiny")

    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "build" / "bench"
    journal = [json.loads(line) for file in out.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert [each for each in journal if each["kind"] == "problem"] == []
    page = (out / "gpu-cpu.md").read_text()
    assert page.startswith("# cpu: polyhead's graphs\n")
    assert "the numbers mean nothing" in page
    conditions = json.loads((out / "gpu-cpu.json").read_text())["conditions"]
    met = {one["name"]: one["holds"] for one in conditions}
    assert met["fp32: every output within 1e-05 of PyTorch"]
    assert met["every part measured something"]
    assert not [name for name in met if "fp16" in name]
    parity = rows(page, "Parity with PyTorch in fp32 on the CPU")
    assert [(family, graph) for family, graph, *_ in parity] == [
        ("tiny-fp32", "model"),
        ("tiny-fp32", "attention"),
    ]
    assert all(float(cell) < 1e-5 for _, _, *cells, _ in parity for cell in cells if cell != "–")
    assert len(rows(page, "Against PyTorch, on one stream")) == 1
    served = rows(page, "Served")
    assert [(workers, batch, errors) for workers, _, batch, _, _, _, errors, _ in served] == [
        ("1", "1", "0"),
        ("1", "8", "0"),
    ]
    assert all(float(difference) < 1e-5 for _, difference, *_ in served)


def test_a_part_that_measures_nothing_has_failed(tmp_path: Path) -> None:
    (tmp_path / "models-gpu").write_text("not a folder")
    models = str(tmp_path / "models")
    done = start(
        tmp_path,
        "benchmarks.gpu_check",
        "--device",
        "cpu",
        "--tiny",
        "--parts",
        "families",
        "--models",
        models,
    )

    assert done.returncode == 1
    assert "families did not: see" in " ".join(done.stdout.split())
