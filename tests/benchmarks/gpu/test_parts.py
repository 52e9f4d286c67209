"""Each part runs by itself, on the CPU as well."""

from pathlib import Path
from typing import Literal

import pytest
from tests.benchmarks.gpu.conftest import RunPart

from gpu.parts import needed_by
from gpu.plan import PARTS, Plan, full, tiny


def test_the_environment_names_the_machine_and_its_peak(run: RunPart) -> None:
    found = run("environment")

    (machine,), (versions,) = found.of("machine"), found.of("versions")
    assert machine["card"] == "cpu"
    assert "onnxruntime module" in versions
    assert [row["precision"] for row in found.of("peak")] == ["fp32"]
    assert found.notes == []


def test_the_table_holds_graphs_against_pytorch(run: RunPart, plan: Plan) -> None:
    found = run("table")

    rows = found.of("size")
    assert sorted((row["batch"], row["tokens"]) for row in rows) == [(1, 8), (4, 8)]
    for row in rows:
        assert set(row["ms"]) == {"fast", "attention", "torch eager", "torch.compile"}
        assert row["problems"] == {}
        assert all(share > 0 for share in row["share_of_peak"].values())
        assert row["against_compiled"] > 0
    assert found.notes == []


def test_the_sweep_has_every_head_count(run: RunPart) -> None:
    rows = run("heads").of("heads")

    assert [(row["heads"], row["head_width"]) for row in rows] == [(2, 16)]
    assert all(set(row["layer_us"]) == {"fast", "attention"} for row in rows)


def test_memory_is_looked_at_step_by_step(run: RunPart) -> None:
    found = run("memory")

    steps = [row["step"] for row in found.of("step")]
    assert [row["step"] for row in found.of("weights")] == ["weights on disk, of both graphs"]
    assert steps[0] == "fast graph loaded"
    assert "attention graph loaded" in steps
    assert found.notes == []


def test_the_engine_answers_what_the_graphs_do(run: RunPart, plan: Plan) -> None:
    found = run("engine")

    rows = found.of("engine")
    assert len(rows) == plan.engine_checks
    assert {row["graph"] for row in rows} == {"fast", "attention"}
    assert {row["check"] for row in rows} == {"one thread", "two threads", "no page-locked memory"}
    assert all(max(row["pooled"], row["rest"]) < 1e-5 for row in rows)
    assert found.notes == []


def test_serving_is_measured_alone_and_served(run: RunPart) -> None:
    found = run("served")

    assert [row["batch"] for row in found.of("alone")] == [1, 8]
    assert [row["server"] for row in found.of("server")] == ["1 worker"]
    assert found.of("server")[0]["difference"] < 1e-5
    loads = found.of("load")
    assert {row["traffic"] for row in loads} >= {"one sequence a call", "all attention, UINT8"}
    assert all(row["errors"] == 0 and row["replies"] > 0 for row in loads)


@pytest.mark.parametrize("part", ["parity", "heads"])
def test_what_has_no_time_is_said(run: RunPart, part: str) -> None:
    found = run(part, seconds=0.0)

    assert found.rows == []
    assert found.notes
    assert all("left out" in note for note in found.notes)


@pytest.mark.parametrize("part", ["parity", "table", "heads", "memory"])
def test_what_was_not_exported_is_said(run: RunPart, part: str, tmp_path: Path) -> None:
    found = run(part, models=tmp_path)

    assert any("was not exported" in note for note in found.notes)


def test_parts_need_only_what_they_measure() -> None:
    plan = full("cuda")

    assert needed_by(plan, ["environment", "kernels"]) == []
    assert [family.key for family in needed_by(plan, ["served", "engine"])] == ["base-fp16"]
    assert [family.key for family in needed_by(plan, ["table"])] == ["large-fp16", "base-fp16"]
    assert len(needed_by(plan, PARTS)) == len(plan.families()) == 5 + 9


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_families_have_names_of_their_own(device: Literal["cuda", "cpu"]) -> None:
    for plan in (full(device), tiny(device)):
        keys = [family.key for family in plan.families()]
        assert len(set(keys)) == len(keys)
        assert {family.precision for family in plan.compared} == set(plan.precisions)
