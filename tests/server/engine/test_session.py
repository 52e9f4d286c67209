"""Sessions, and which of their operators run where."""

from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import everything_on, pretend

from polyhead_server.engine.device import CPU, CUDA
from polyhead_server.engine.devices import on_cpu, on_cuda
from polyhead_server.engine.session import open_session, slow_on_cpu
from polyhead_server.errors import DeviceError, RepositoryError


def test_what_is_no_graph_is_refused(repository: Path) -> None:
    with pytest.raises(RepositoryError, match=r"weights\.bin cannot be loaded by onnxruntime"):
        open_session(repository / "tiny" / "1" / "weights.bin", device=on_cpu(""), threads=1)


@pytest.mark.parametrize("recorded", [[], everything_on("AnotherExecutionProvider")])
def test_a_graph_of_which_nothing_is_known_to_be_on_the_device_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch, recorded: list[Any]
) -> None:
    pretend(monkeypatch, CUDA, recorded)
    with pytest.raises(DeviceError, match=r"model\.onnx must run on CUDAExecutionProvider, but onnxruntime"):
        open_session(repository / "tiny" / "1" / "model.onnx", device=on_cuda(""), threads=1)


def test_large_work_on_the_cpu_is_named_and_shapes_are_not() -> None:
    operators = {CUDA: {"MatMul": 70}, CPU: {"Shape": 4, "MatMul": 2, "MultiHeadAttention": 1}}

    assert slow_on_cpu(operators, on_cuda("")) == {"MatMul": 2, "MultiHeadAttention": 1}
    assert slow_on_cpu({CPU: {"MatMul": 72}}, on_cpu("")) == {}


def test_what_is_not_known_to_be_about_shapes_is_large_work() -> None:
    work = {"Add": 1, "Einsum": 1, "Erf": 2, "QAttention": 1, "Tanh": 1, "Where": 1}

    operators = {CUDA: {"MatMul": 70}, CPU: work | {"Range": 1, "Squeeze": 4}}

    assert slow_on_cpu(operators, on_cuda("")) == work
