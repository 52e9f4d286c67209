"""Targets are met only by what was measured."""

import math
from typing import Any

import pytest

from benchmarks.gpu.page import Rows, page


def verdicts(**found: Rows) -> dict[str, str]:
    lines = page(found, tiny=False).partition("## Targets")[2].partition("\n## ")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    return {row[0]: row[1] for row in rows}


def test_what_was_not_measured_is_left_open() -> None:
    assert set(verdicts().values()) == {"–"}


@pytest.mark.parametrize(("pooled", "met"), [(1e-4, "yes"), (2e-3, "**no**"), (math.nan, "**no**")])
def test_parity(pooled: float, met: str) -> None:
    row: dict[str, Any] = {
        "kind": "graph",
        "family": "base-fp16",
        "graph": "model",
        "worst": {"pooled": pooled, "output": 0.5},
        "on_cpu": {"Gather": 1},
        "slow_on_cpu": {},
    }
    assert verdicts(parity=[row])["fp16: pooled output within 0.001 of PyTorch"] == met
    assert verdicts(parity=[row])["nothing but operators on shapes left to the CPU"] == "yes"

    row["slow_on_cpu"] = {"Softmax": 1}
    assert verdicts(parity=[row])["nothing but operators on shapes left to the CPU"] == "**no**"


@pytest.mark.parametrize(("kind", "met"), [("cuDNN", "yes"), ("unfused", "**no**"), ("", "**no**")])
def test_the_fast_graphs_kernel(kind: str, met: str) -> None:
    row: dict[str, Any] = {
        "kind": "kernels",
        "family": "base-fp16",
        "graph": "model",
        "size": [1, 8],
        "messages": [],
        "attention": kind,
        "longest": {"a": 1.0},
    }
    assert verdicts(kernels=[row])["16 bits: the fast graph's attention is fused"] == met


def test_the_worst_size_and_the_best_load_count() -> None:
    size = {"kind": "size", "family": "f", "batch": 1, "tokens": 8, "ms": {}, "attention_costs": None}
    sizes = [{**size, "against_torch": [each] * 3, "teraflops": 1.0} for each in (1.2, 0.9)]
    load = {
        "kind": "load",
        "workers": 1,
        "batch": 1,
        "in_flight": 1,
        "p50_ms": 1.0,
        "p99_ms": 1.0,
        "cores": 1.0,
    }
    loads: list[dict[str, Any]] = [
        {"kind": "in_process", "batch": 1, "sequences_per_second": 100.0},
        {**load, "sequences_per_second": 95.0, "errors": 0},
        {**load, "sequences_per_second": 50.0, "errors": 0},
    ]

    met = verdicts(speed=sizes, served=loads)
    assert met["fast graph ≥ torch.compile + SDPA, at its best"] == "**no**"
    assert met["served ≥ 0.9 × onnxruntime in process, without errors"] == "yes"

    loads[1]["errors"] = 3
    assert verdicts(served=loads)["served ≥ 0.9 × onnxruntime in process, without errors"] == "**no**"
