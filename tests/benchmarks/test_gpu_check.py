"""The command as it is started."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gpu_check
from gpu.journal import Journal

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


def check(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_fails(tmp_path: Path) -> None:
    done = check(tmp_path, "--parts", "kernels")

    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "nothing was measured" in said
    assert "sees no GPU" in said
    assert not list(tmp_path.rglob("*.md"))


def test_a_part_by_itself_on_the_cpu(tmp_path: Path) -> None:
    done = check(tmp_path, "--device", "cpu", "--tiny", "--parts", "kernels")

    assert done.returncode == 0, done.stdout + done.stderr
    page, data = (tmp_path / "build" / "bench" / f"gpu-cpu.{ending}" for ending in ("md", "json"))
    assert "Which kernel computes attention" in page.read_text()
    parts = json.loads(data.read_text())["parts"]
    assert {part: facts["state"] for part, facts in parts.items()} == {
        "environment": "done",
        "kernels": "done",
    }


def test_a_part_that_measures_nothing_has_failed(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    own = ["--part", "heads", "--allowed", "60", "--journal", str(journal), "--models", str(tmp_path)]

    assert gpu_check.main(["--device", "cpu", "--tiny", *own]) == 0

    found = Journal(journal).read()["heads"]
    assert found.state == "failed"
    assert "was not exported" in (found.problem or "")


def test_what_it_cannot_measure_is_no_part(tmp_path: Path) -> None:
    done = check(tmp_path, "--parts", "weather")

    assert done.returncode == 2
    assert "kernels" in done.stderr
