"""The operators of graphs as onnxruntime runs them."""

from pathlib import Path
from typing import Any

import pytest

from polyhead_load.sweep.families import SweepFamily, find_family
from polyhead_load.sweep.graphs import attention_kernel, describe_graphs

CPU = {"tiny": "CPUExecutionProvider"}


def test_operators_and_kernels(repository: Path) -> None:
    family: Any = find_family(repository, "tiny")

    graphs = describe_graphs([family], CPU, {"fast", "attention"})["tiny"]

    assert graphs["fast"]["optimised"]
    assert graphs["attention"]["optimised"]
    assert graphs["fast"]["operators"]["MultiHeadAttention"] == 2
    assert graphs["attention"]["operators"]["Softmax"] == 2
    assert graphs["fast"]["kernel"] == "fused MultiHeadAttention, CPU"
    assert graphs["attention"]["kernel"] == "explicit MatMul–Softmax–MatMul, CPU"
    assert describe_graphs([family], {}, {"fast"}) == {}


@pytest.mark.parametrize(
    ("operators", "kernel"),
    [
        ({"MultiHeadAttention": 2}, "fused MultiHeadAttention, CUDA (kernel unknown)"),
        ({"Add": 1}, "no attention, CUDA"),
    ],
)
def test_kernels_on_cuda(operators: dict[str, int], kernel: str) -> None:
    assert attention_kernel(operators, "CUDAExecutionProvider") == kernel


def test_graphs_that_cannot_be_read(tmp_path: Path) -> None:
    manifest = {"graphs": {"fast": {"file": "model.onnx"}}}
    family = SweepFamily(name="tiny", folder=tmp_path, manifest=manifest)

    assert "could not be read" in describe_graphs([family], CPU, {"fast"})["problem"]
