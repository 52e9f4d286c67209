"""The operators of graphs as onnxruntime runs them."""

from pathlib import Path

from polyhead_load.sweep.graphs import inspect, kernel

CPU = "CPUExecutionProvider"


def test_operators_and_kernels(repository: Path) -> None:
    files = [repository / "tiny" / "1" / name for name in ("model.onnx", "attention.onnx")]

    found = inspect(files, CPU)

    fast, attention = (found[str(file)] for file in files)
    assert fast["optimised"]
    assert attention["optimised"]
    assert fast["operators"]["MultiHeadAttention"] == 2
    assert attention["operators"]["Softmax"] == 2
    assert kernel(fast["operators"], CPU) == "fused MultiHeadAttention, CPU"
    assert kernel(attention["operators"], CPU) == "explicit MatMul–Softmax–MatMul, CPU"
    assert kernel(fast["operators"], "CUDAExecutionProvider").endswith("CUDA (kernel unknown)")
    assert kernel({"Add": 1}, "CUDAExecutionProvider") == "no attention, CUDA"


def test_graphs_that_cannot_be_read(tmp_path: Path) -> None:
    assert "could not be read" in inspect([tmp_path / "model.onnx"], CPU)["problem"]
