"""What people read."""

import json
from itertools import takewhile
from pathlib import Path

from tests.benchmarks.gpu.conftest import RunPart

from gpu.journal import Found
from gpu.report import page, write
from gpu.targets import Target

TARGETS = [
    Target(name="fast ≥ slow", seen="1.30 (B = 1)", met=True),
    Target(name="small ≤ large", seen="2.0", met=False),
    Target(name="unknown", seen="not measured", met=None),
]
MACHINE = Found(state="done", rows=[{"kind": "machine", "card": "NVIDIA H200", "python": "3.12.3"}])


def test_the_page_says_what_was_met_what_failed_and_what_was_left_out() -> None:
    found = {
        "environment": MACHINE,
        "table": Found(state="failed", problem="RuntimeError: no", notes=["B = 128: left out"], seconds=3.2),
        "served": Found(state="out of time", problem="ended after 90 s"),
    }
    lines = page(found, TARGETS, tiny=False).splitlines()

    assert lines[0] == "# NVIDIA H200: polyhead's graphs"
    assert "| fast ≥ slow | yes | 1.30 (B = 1) |" in lines
    assert "| small ≤ large | **no** | 2.0 |" in lines
    assert "| unknown | – | not measured |" in lines
    assert "| table | failed: RuntimeError: no | 3 | 0 |" in lines
    assert "- B = 128: left out" in lines
    assert not any("mean nothing" in line for line in lines)


def test_a_try_out_says_that_it_is_one() -> None:
    assert "numbers mean nothing" in page({"environment": MACHINE}, TARGETS, tiny=True)


def test_every_part_can_be_shown(run: RunPart) -> None:
    found = {
        part: run(part) for part in ("environment", "parity", "engine", "kernels", "table", "heads", "memory")
    }
    lines = page(found, [], tiny=True).splitlines()

    for heading in ("The machine", "Which kernel computes attention", "Against PyTorch", "Memory"):
        assert any(line.startswith(f"## {heading}") for line in lines)
    for number, line in enumerate(lines):
        if line.startswith("|---"):
            rows = list(takewhile(lambda row: row.startswith("|"), lines[number + 1 :]))
            assert rows
            assert {row.replace("\\|", "").count("|") for row in rows} == {line.count("|")}


def test_page_and_data_lie_beside_each_other(tmp_path: Path) -> None:
    out = tmp_path / "results" / "gpu-h200-1.5"

    write(out, {"environment": MACHINE}, TARGETS, tiny=False)

    data = json.loads((tmp_path / "results" / "gpu-h200-1.5.json").read_text())
    assert [target["met"] for target in data["targets"]] == [True, False, None]
    assert data["parts"]["environment"]["rows"][0]["card"] == "NVIDIA H200"
    assert sorted(path.name for path in out.parent.iterdir()) == ["gpu-h200-1.5.json", "gpu-h200-1.5.md"]
